"""Pipeline: workers hold different stages of the model, and a schedule orders their work.

Workers are coordinates of a mesh. Along `layers` they hold different stages; along `inside` they share the layers of a
stage, as under `SplitLayers`; along `data` there are replicas of the whole, which add their gradients up before every
update. Most plans have the axis `layers` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.proof import prove
from paceline.algorithms.collectives.rings import Ring
from paceline.algorithms.schedules import Schedule, Table, Work, table_of
from paceline.algorithms.schedules.user_table import UserTable
from paceline.algorithms.schedules.worker import Program, follow
from paceline.algorithms.server.messages import Lease
from paceline.algorithms.server.worker import Place, share_leases
from paceline.algorithms.splits import Mesh
from paceline.algorithms.splits.recipes import SplitRecipe, Tensor
from paceline.errors import PlanError
from paceline.plans.methods import IN_STEP, Division, Method, Server, Traits, computed
from paceline.plans.methods.prediction import Estimate, Prices, Weights
from paceline.plans.methods.server import ParameterServer
from paceline.plans.methods.split_layers import DATA, INSIDE, PART
from paceline.plans.methods.views import Stages

LAYERS = "layers"
FREE_RUNNING = 8  # updates of a table that never flushes that are timed
LARGEST = 200_000  # cells of a table, whose proof takes half a minute


class StageWorker(Protocol):
    """The worker that a program is of. One that stands for those that share a stage's layers has the first's place."""

    #: Workers along the axis `layers`.
    depth: int

    def lines(self) -> Iterator[Iterable[Work]]:
        """Yield its line of one table after another."""


class LeasingWorker(StageWorker, Protocol):
    """A worker of a replica that is the client of a server."""

    @property
    def client(self) -> Place:
        """The worker as its desk knows it."""

    def line(self, lease: Lease) -> Iterable[Work]:
        """Return its line of a batch."""


@dataclass(frozen=True)
class Spread:
    """What a pipeline has besides stages: replicas of the whole, and workers that share the layers of a stage."""

    data: int = 1
    inside: int = 1
    #: How the layers of a stage are split.
    recipe: SplitRecipe = field(default_factory=Tensor)
    #: Adds gradients up between replicas.
    collective: Collective = field(default_factory=Ring)
    #: Holds the parameters between replicas that do not keep step; None where they sum gradients.
    server: ParameterServer | None = None

    @property
    def wide(self) -> bool:
        """Whether there is another axis than `layers`."""
        return self.data * self.inside > 1 or self.server is not None


@dataclass(frozen=True)
class Pipeline(Method):
    """Runs the stages of a model by a schedule."""

    schedule: Schedule
    micro_batches: int = 1
    #: Names of the layers where stages begin, joined by +; empty where stages are balanced automatically.
    cuts: str = ""
    #: What is balanced between stages: "time", which is measured, or "memory" or "operations", which are counted.
    balance: str = "time"
    #: Which stages compute activations again instead of keeping them: "none", "all", or numbers joined by +.
    recompute: str = "none"
    #: MiB that a worker may use; 0 for no bound.
    memory: int = 0
    spread: Spread = field(default_factory=Spread)

    family = copies = "stages"

    @computed
    def traits(self) -> Traits:
        flush = (
            "it never has the gradient of the whole model at one time. The last stage makes its update before the "
            "first has a gradient of the same batch, so the norm of the whole gradient is not known yet; to wait for "
            "it would be a flush. Leave it out (with a smaller learning rate), or use a pipeline that flushes, such "
            "as one_f_one_b"
        )
        served = self.spread.server is not None
        refusal = PART if self.spread.inside > 1 or served else "" if self.flushes else flush
        never_empty = "its pipeline is never empty before the end" if self.schedule.span == 0 else ""
        return Traits(
            synchronous=not served,
            holds="stages",
            whole_batch=self.flushes and not self.spread.wide,
            one_model=self.flushes and not served,
            optimizer_at_server=served,
            shares_parameters=self.spread.inside > 1 or served,
            takes_sparse=not self.spread.wide,
            devices="parts" if self.spread.wide else "stages",
            needs_train="cuts the model into stages, and your loop has it whole",
            cannot_clip=refusal,
            cannot_skip=refusal,
            cannot_scale="each stage has a part of the gradient alone, and none sees whether the whole overflows",
            no_checkpoints="its shards lie with parts of stages, for which there is no common cut"
            if served
            else never_empty,
            one_machine="its stages exchange activations in the memory of one machine; on several machines use "
            + IN_STEP,
        )

    @computed
    def server(self) -> Server | None:
        return self.spread.server

    @computed
    def own_table(self) -> str:
        return self.schedule.text if isinstance(self.schedule, UserTable) else ""

    @computed
    def unflushed(self) -> bool:
        return not self.flushes

    @property
    def flushes(self) -> bool:
        """Whether the pipeline is empty after every update."""
        return self.schedule.span == 1

    def program(self, worker: StageWorker) -> Program:
        """Return what a worker does, as effects."""
        stage_to_worker = self.schedule.layout(worker.depth).stage_to_worker
        for line in worker.lines():
            yield from follow(line, stage_to_worker)

    def leasing_program(self, worker: LeasingWorker) -> Program:
        """Return what a worker does, whose replica leases batches from a server."""
        stage_to_worker = self.schedule.layout(worker.depth).stage_to_worker
        client = worker.client
        return share_leases(client, lambda lease: follow(worker.line(lease), stage_to_worker, client.push(lease)))

    def division(self, workers: int, chunks: int) -> Division:
        if self.spread.server is not None:
            return Division(self.micro_batches, results=0)
        return Division(self.spread.data * self.micro_batches)

    def prove(self, workers: int) -> None:
        """Prove what does not depend on the model; `engines.setup` proves the tables of a training."""
        self.mesh(workers)
        if self.spread.data > 1 and self.spread.server is None:
            prove(self.spread.collective, self.spread.data)

    def mesh(self, workers: int) -> Mesh:
        """Return the mesh of so many workers; raise `PlanError` if they do not fill it."""
        around = self.spread.data * self.spread.inside
        if workers % around:
            raise PlanError(
                f"{workers} workers do not fill a mesh of data={self.spread.data} by layers by "
                f"inside={self.spread.inside}; give a multiple of {around}"
            )
        return Mesh(((DATA, self.spread.data), (LAYERS, workers // around), (INSIDE, self.spread.inside)))

    def depth(self, workers: int) -> int:
        """Return the number of workers along the axis `layers`, which tables know."""
        return self.mesh(workers).size(LAYERS)

    @property
    def together(self) -> int:
        """The replicas that make an update together; 1 where each makes its own, at a server."""
        return 1 if self.spread.server is not None else self.spread.data

    def shards(self, workers: int) -> int:
        """Return the number of shards of a server: one for each place of a replica."""
        return self.mesh(workers).workers // self.spread.data

    def stages(self, workers: int) -> int:
        return len(self.schedule.layout(self.depth(workers)).stage_to_worker)

    def recomputing(self, workers: int) -> tuple[int, ...]:
        """The stages that compute their activations again."""
        every = {"none": (), "all": tuple(range(self.stages(workers)))}
        return every[self.recompute] if self.recompute in every else tuple(map(int, self.recompute.split("+")))

    def table(self, workers: int, counts: Sequence[int]) -> Table:
        """Return the table of these updates, each of so many micro-batches."""
        if (size := self.stages(workers) * sum(counts)) > LARGEST:
            raise PlanError(
                f"the table of this pipeline would have {size:,} cells, micro-batches times stages, and at most "
                f"{LARGEST:,} are proved; give fewer micro_batches or workers"
            )
        return table_of(self.schedule, self.depth(workers), counts)

    def count(self, plan: str, options: Mapping[str, Any], stated: bool) -> int:
        """Return the workers of the table, or all that a mesh of these axes has; raise for cuts that do not fit."""
        workers = self._counted(plan, options, stated)
        self._check_stages(plan, workers)
        return workers

    def _counted(self, plan: str, options: Mapping[str, Any], stated: bool) -> int:
        if isinstance(self.schedule, UserTable):
            return self.schedule.workers
        workers: int = options["workers"]
        if layers := options.get("layers", 0):
            mesh: int = self.spread.data * layers * self.spread.inside
            if stated and mesh != workers:
                axes = f"data={self.spread.data} x layers={layers} x inside={self.spread.inside}"
                raise PlanError(f"plan {plan!r}: {axes} are {mesh} workers, not {workers}; leave one of them out")
            return mesh
        return workers

    def _check_stages(self, name: str, workers: int) -> None:
        """Raise `PlanError` if cuts or recomputation name stages that the plan does not have."""
        stages = self.stages(workers)
        cuts = self.cuts.count("+") + 1 if self.cuts else stages - 1
        if cuts + 1 != stages:
            raise PlanError(f"{cuts} cuts ({self.cuts}) make {cuts + 1} stages, and the plan has {stages}")
        words = [] if self.recompute in ("none", "all") else self.recompute.split("+")
        if not all(word.isdecimal() and int(word) < stages for word in words):
            raise PlanError(
                f"plan {name!r}: recompute={self.recompute!r} is neither 'none' nor 'all' nor stages from 0 to "
                f"{stages - 1}, as in recompute=0+1"
            )

    def predict(self, prices: Prices) -> Estimate:
        updates, again = 1 if self.flushes else FREE_RUNNING, self.recomputing(prices.workers)
        table = self.table(prices.workers, [self.micro_batches] * updates)
        estimate = prices.on_clock(table, self.micro_batches, updates, again)
        moved = prices.division_bytes()
        moved = estimate.bytes if moved is None else moved
        if self.spread.server is not None:
            moved += 2.0 * prices.served / prices.workers  # each stage pushes its gradient, and pulls its parameters
        return replace(estimate, bytes=moved)

    def part_bytes(self, workers: int, cost: Weights) -> float:
        stages, micro = self.stages(workers), self.micro_batches
        tensors = cost.activation_bytes * min(1.0, stages / micro) + (cost.peak_bytes - cost.activation_bytes) / micro
        return (3 * cost.parameter_bytes + cost.state_bytes + tensors) / stages + cost.batch_bytes

    def picture(self, workers: int) -> Stages:
        spread, gate = self.spread, self.spread.server.gate if self.spread.server is not None else None
        return Stages(
            self.mesh(workers),
            self.micro_batches,
            self.schedule,
            lambda counts: self.table(workers, counts),
            spread.recipe,
            spread.collective,
            gate,
            spread.wide,
            self.program,
            self.leasing_program,
        )

    claim = picture
