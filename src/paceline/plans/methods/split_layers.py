"""SplitLayers: every worker of a group holds a part of each layer, and they compute a chunk together.

Workers are coordinates of a mesh. Along `inside` they share the layers of one replica; along `data` there are replicas,
which compute a chunk each and add their gradients up. Under ZeRO the workers along `inside` compute chunks of their
own, and share what is stored of a replica.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.agenda import Agenda, Chunk
from paceline.core.collectives import Collective
from paceline.core.collectives.proof import prove
from paceline.core.mesh import Mesh
from paceline.core.splits.recipes import SplitRecipe
from paceline.errors import PlanError
from paceline.plans.methods import Division, Traits
from paceline.plans.methods.program import Gradient, Program, Step, Sum, Worker

DATA, INSIDE = "data", "inside"
PART = "each of its workers has a part of the gradient alone, and none its norm; leave it out, or use ring"


@dataclass(frozen=True)
class SplitLayers:
    """Splits the layers of each replica over the workers along one axis of a mesh."""

    recipe: SplitRecipe
    #: Adds gradients up between replicas.
    collective: Collective
    #: Replicas, each of which is split over as many workers as there are for it.
    data: int = 1
    #: The stage of ZeRO, where workers along `inside` compute chunks of their own; 0 for all other splits.
    stage: int = 0
    #: The MiB that a worker may take for its tensors; 0 for no bound.
    memory: int = 0

    averaging = streaming = coordinator = None
    traits = Traits(
        whole_model=False,
        shares_parameters=True,
        devices="parts",
        needs_train="splits the model's layers, and your loop has them whole",
        cannot_clip=PART,
        cannot_skip=PART,
        cannot_scale="each of its workers has a part of the gradient alone, and none sees whether the whole overflows",
    )

    def program(self, worker: Worker) -> Program:
        for update in worker.updates():
            yield from self._update(update)

    def _update(self, update: int) -> Program:
        # A program of its own, which ends here: the memory of its gradient serves the next one.
        gradient = yield Gradient(update, version=update)
        if self.data > 1:
            gradient = yield Sum(update, gradient)
        yield Step(update, update + 1, gradient)

    def mesh(self, workers: int) -> Mesh:
        """Return the mesh of so many workers; raise `PlanError` if they do not fill it."""
        if workers % self.data:
            raise PlanError(f"{workers} workers cannot be {self.data} replicas of equally many; give a multiple")
        return Mesh(((DATA, self.data), (INSIDE, workers // self.data)))

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers if self.stage else self.data)

    def part(self, mesh: Mesh, worker: int) -> int:
        """Return which part of every batch a worker computes: its own, or that of its replica."""
        return worker if self.stage else mesh.coordinate(worker, DATA)

    def chunks(self, mesh: Mesh, agenda: Agenda, update: int, worker: int) -> list[Chunk]:
        """Return the chunks of an update that a worker takes part in; as many for all workers of a group.

        A chunk of its own may be empty in a batch that is smaller than there are workers.
        """
        part = self.part(mesh, worker)
        return agenda.chunks(update)[part :: agenda.parts] if self.stage else agenda.mine(update, part)

    def prove(self, workers: int) -> None:
        """Prove what does not depend on the model; `engines.setup` proves the program of the model itself."""
        self.mesh(workers)
        if self.data > 1:
            prove(self.collective, self.data)
