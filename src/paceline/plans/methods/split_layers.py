"""SplitLayers: every worker of a group holds a part of each layer, and they compute a chunk together.

Workers are coordinates of a mesh. Along `inside` they share the layers of one replica; along `data` there are replicas,
which compute a chunk each and add their gradients up. Under ZeRO the workers along `inside` compute chunks of their
own, and share what is stored of a replica.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.proof import prove
from paceline.algorithms.dataflow import example_graph
from paceline.algorithms.dataflow.proof import explore
from paceline.algorithms.dataflow.worker import follow_messages
from paceline.algorithms.splits import Mesh
from paceline.algorithms.splits.recipes import SplitRecipe
from paceline.errors import PlanError
from paceline.plans.methods import IN_STEP, Division, Method, Synchronous, Traits, computed
from paceline.plans.methods.prediction import CROWDED_MESSAGE, Estimate, Guess, NotPredicted, Prices, Terms, error_of
from paceline.plans.methods.program import Gradient, OptimizerStep, Program, Sum, Worker
from paceline.plans.methods.views import Operators, Parts

DATA, INSIDE = "data", "inside"
PART = "each of its workers has a part of the gradient alone, and none its norm; leave it out, or use ring"
GATHER = 0.7  # of a segment's Python: what a gather or a scatter of one layer's parameters takes
ERROR = 0.5  # of the seconds of parts of layers: smaller operations than the card was fitted on


@dataclass(frozen=True)
class SplitLayers(Synchronous):
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

    traits = Traits(
        holds="parts",
        whole_batch=True,
        one_model=True,
        shares_parameters=True,
        devices="parts",
        needs_train="splits the model's layers, and your loop has them whole",
        cannot_clip=PART,
        cannot_skip=PART,
        cannot_scale="each of its workers has a part of the gradient alone, and none sees whether the whole overflows",
        one_machine=f"its workers exchange parts of layers in the memory of one machine; on several use {IN_STEP}",
    )

    @computed
    def family(self) -> str:
        return "gathers" if self.stage else "parts"  # ZeRO divides what is stored, and computes whole layers

    def program(self, worker: Worker) -> Program:
        for update in worker.updates():
            yield from self._update(update)

    def _update(self, update: int) -> Program:
        # A program of its own, which ends here: the memory of its gradient serves the next one.
        gradient = yield Gradient(update, version=update)
        if self.data > 1:
            gradient = yield Sum(update, gradient)
        yield OptimizerStep(update, update + 1, gradient)

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

    def predict(self, prices: Prices) -> Estimate:
        samples = prices.samples(prices.workers if self.stage else self.data)
        compute, u, share = prices.compute(samples), prices.update(), prices.share(samples)
        c = Guess(compute.seconds * share.computed, max(compute.error, ERROR))
        u = Guess(u.seconds * share.held, u.error)
        message, segment, bandwidth = prices.link()
        exchange = message * share.messages + share.bytes / bandwidth
        # A segment of a split layer runs several operations; ZeRO gathers or scatters one tensor at a time.
        between = segment * max(1.0, GATHER * share.messages if self.stage else share.segments)
        if self.stage and prices.workers > prices.cores:
            exchange, between = CROWDED_MESSAGE * exchange, segment  # the Python of one goes on while others wait
        terms = Terms(c.seconds, u.seconds, exchange, prices.waiting(prices.workers, c.seconds), between)
        return Estimate(terms, error_of(c, u), ERROR, share.bytes)

    def picture(self, workers: int) -> Parts:
        mesh = self.mesh(workers)
        return Parts(self.recipe, mesh.size(INSIDE), self.stage, mesh.size(DATA), self.collective)

    claim = picture


# Dataflow: workers hold operators, which send each other values and gradients whenever they have computed one.

ALONE = "each operator makes its own updates, so none knows the norm of the whole gradient; leave it out"


@dataclass(frozen=True)
class Dataflow(Method):
    """Runs the operators of a model by the messages between them, for many chunks at a time."""

    #: Chunks of a batch, each of which is an instance with a graph of its own.
    micro_batches: int = 1
    #: The most instances under way (max_active_keys).
    active: int = 4
    #: The fewest instances whose gradients make an update of an operator (min_update_frequency).
    every: int = 1
    #: The worker of each operator with parameters; empty where they are balanced.
    on: tuple[int, ...] = ()

    program = staticmethod(follow_messages)
    traits = Traits(
        holds="operators",
        devices="parts",
        cannot_clip=ALONE,
        cannot_skip=ALONE,
        cannot_scale="each operator makes its own updates, so none sees whether the whole gradient overflows",
        needs_train="calls the model's operators at several workers, and your loop has the whole model",
        no_checkpoints="its workers have messages under way, for which there is no common cut",
        one_machine=f"its operators exchange messages in the memory of one machine; on several use {IN_STEP}",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(self.micro_batches)

    def prove(self, workers: int) -> None:
        """Walk every order of arrivals in a small world."""
        if self.on and set(self.on) != set(range(workers)):
            raise PlanError(
                f"plan 'ampnet': on={'+'.join(map(str, self.on))} must name each of the workers 0 to {workers - 1}"
            )
        walk = explore(example_graph, min(workers, 2), 2, min(self.active, 2), min(self.every, 2), program=self.program)
        if walk.story is not None:
            raise PlanError(walk.story)

    def predict(self, prices: Prices) -> Estimate:
        raise NotPredicted("which operators a sample calls is known when it does")

    def picture(self, workers: int) -> Operators:
        return Operators(self.micro_batches, self.active, self.every, self.program)

    claim = picture
