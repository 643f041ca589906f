"""All workers of a plan with a server in one process: their ports on private memory, used one after another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from torch import Tensor

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.server.messages import Action, Join, Pull, Push
from paceline.plans.methods import Server
from paceline.runtime.engines.arithmetic.common import Snapshots, make_learner
from paceline.runtime.engines.servers.ports import (
    ServerPort,
    gather_buffers,
    open_ports,
    put_version_0,
    restore,
    version_shapes,
)
from paceline.runtime.engines.servers.shard_memory import WorkerSide, newest_values, private_memory
from paceline.runtime.engines.setup import Setup
from paceline.training.gradients.encoder import encoder_of
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.replicas import mean_of
from paceline.training.parameters.shard_version import ShardVersion


class ServerArithmetic:
    """Computes gradients and applies pushes in the order of the caller's calls.

    `versions` are those that the shards begin with, if the run was resumed; `lines` are the workers, where processes of
    one worker that were alive at the same time count apart.
    """

    def __init__(self, setup: Setup, versions: list[int] | None = None, lines: int = 0) -> None:
        self.setup, self.snapshots = setup, Snapshots(setup, self.values)
        plan, layout = setup.plan, setup.layout
        self.method: Server = plan.method  # type: ignore[assignment]
        method, workers = self.method, max(lines, plan.workers)
        learner, optimizer = make_learner(setup)
        shapes = version_shapes(method, layout, trainable(learner.replica.module), optimizer, setup.probe.tables)
        self.memories = [private_memory(shape, method.machine(workers), method.slots) for shape in shapes]
        for memory, version in zip(self.memories, versions or [0] * len(shapes), strict=True):
            memory.init(version)
        put_version_0(self.memories, layout, learner.replica.module, method, {})
        self.buffers = gather_buffers(self.memories, layout)
        self.sides, self.ports = list[WorkerSide](), list[Sequence[ServerPort]]()
        for worker in range(workers):
            side, ports = self._open(worker, *((learner, optimizer) if not worker else make_learner(setup)))
            self.sides.append(side)
            self.ports.append(ports)
        self.gradients: list[list[Tensor | None]] = [[] for _ in self.sides]
        #: What `hold` has kept of shards.
        self.held: dict[int, Tensor] = {}
        #: Whether an earlier part of the run came before.
        self.resumed = False

    def _open(self, worker: int, learner: Learner, optimizer: Optimizer) -> tuple[WorkerSide, Sequence[ServerPort]]:
        plan, layout = self.setup.plan, self.setup.layout
        side = WorkerSide(
            worker,
            plan,
            learner,
            optimizer,
            layout,
            encoder_of(plan.codec, layout, learner.replica),
            lambda: None,
            lambda *row: None,
            lambda version, state: None,
        )
        return side, open_ports(side, self.memories, lambda number, shared: nullcontext(0), self.buffers)

    def join(self, event: Join) -> None:
        """Let another process take the place of a worker's."""
        worker = event.worker
        self.sides[worker], self.ports[worker] = self._open(worker, *make_learner(self.setup))
        for port in self.ports[worker] if self.resumed else ():
            port.resume(True, None)

    def resume(self, before: ServerArithmetic) -> None:
        """Continue from where an earlier part of the run ended, perhaps with another number of workers."""
        for memory, earlier in zip(self.memories, before.memories, strict=True):
            restore(memory, self.method, [version.worker_state() for version in earlier.all_newest])
        self.resumed = True
        saved = [ports[0].worker_state() for ports in before.ports[: before.setup.plan.workers]]
        for worker, ports in enumerate(self.ports):
            for port in ports:
                port.resume(True, saved[worker] if worker < len(saved) else None)

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        """Compute the gradient of one task from the version that this worker holds."""
        side, port = self.sides[worker], self.ports[worker][0]
        task = chunks[0].update if chunks else -1  # a share of a small batch may be empty
        if chunks and self.setup.agenda.begins(task):
            port.begin_part()
        computed = side.learner.compute(chunks)
        self.gradients[worker] = port.finalize(task, computed)
        return computed

    def base(self, worker: int) -> int:
        return self.ports[worker][0].base

    def pull(self, event: Pull) -> Action:
        return self.ports[event.worker][event.shard].pull(event)

    def push(self, event: Push) -> Action:
        return self.ports[event.worker][event.shard].push(event, self.gradients[event.worker])

    def bytes(self, event: Push) -> int:
        """Return the bytes that the worker's last push to this shard moved."""
        return self.ports[event.worker][event.shard].bytes

    def newest(self, shard: int) -> list[ShardVersion]:
        return self.memories[shard].all_newest

    def hold(self, shard: int) -> None:
        """Let `values` return this version of a shard, whatever is pushed to it from now on."""
        self.held[shard] = self.memories[shard].newest.values.clone()

    def values(self) -> list[Tensor]:
        """Return the newest trainable parameters in the module's order, then the moving buffers."""
        layout, names = self.setup.layout, self.setup.names
        newest = newest_values(self.memories)
        if len(self.memories) > 1:
            newest = [[self.held.get(shard, values) for shard, values in enumerate(newest[0])]]
        means = mean_of([layout.collect(flats, names) for flats in newest])
        return [value.clone() for value in means]
