"""A worker's side of the servers: the walk that asks for batches, and pushes their gradients over sockets.

batch = client.next_batch()       handles what arrives until the machine wants a batch computed
client.push(computed)             one vector per shard; the machine pushes them all at once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from time import perf_counter_ns as now

import torch
from torch import Tensor

from paceline.core.cluster.messages import Message, Process, Pulled, Push, Pushed, Role
from paceline.core.cluster.outputs import Adopt, Compute, Finished, Output, Timing
from paceline.core.cluster.worker import Stage, WorkerMachine
from paceline.engines.cluster.servers.loop import MachineLoop
from paceline.engines.cluster.servers.shard_state import GradientVector, Vector, vector_pool
from paceline.engines.cluster.servers.wire import kind_of
from paceline.engines.local.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.errors import WaitedTooLong
from paceline.gradients.payload import GradientSum
from paceline.links.tcp.connection import Buffer
from paceline.links.tcp.doors import Address
from paceline.links.tcp.handshake import Peer
from paceline.links.tcp.hub import Hub, Received
from paceline.links.waiting import Cancelled
from paceline.parameters.layout import ShardLayout, trainable
from paceline.plans.methods.server import ParameterServer

PUSHED, PULLED = kind_of(Pushed), kind_of(Pulled)


class ShardReplica:
    """A worker's copy of one shard: the memory that its module computes with, and the vector that it pushes."""

    def __init__(self, layout: ShardLayout, dtype: torch.dtype, parameters: Sequence[Tensor], vector: Vector) -> None:
        self.flat = torch.zeros(layout.length, dtype=dtype)
        self.views = layout.parameter_views(self.flat)
        self.buffers = layout.buffer_views(self.flat)
        for parameter, view in zip(parameters, self.views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.raw = self.flat.view(torch.uint8).numpy().data
        self.vector = vector

    def look_back(self) -> None:
        """Write what the gradient was computed from, if the rule wants it."""
        if len(self.vector.before):
            self.vector.before.copy_(self.flat.view(torch.uint8))


class ServerClient:
    """`loop.Owner` of a worker."""

    def __init__(
        self, number: int, runner: PlanRunner, timing: Timing, desk: Address, deadline: float,
        open_hub: Callable[[Callable[[Peer, int, tuple[int, ...], int], memoryview | None]], Hub],
    ) -> None:  # fmt: skip
        """`open_hub` makes the hub of this process, given where to receive bodies."""
        self.runner, self.deadline, self.rank = runner, deadline, number % runner.plan.workers
        method, layout, replica = runner.plan.method, runner.layout, runner.replica
        assert isinstance(method, ParameterServer)
        named = trainable(replica.module)
        numbers = {id(parameter): n for n, parameter in enumerate(replica.parameters)}
        owned = [[named[span.name] for span in shard.parameters] for shard in layout.shards]
        looks_back, codec, seed = method.rule.looks_back, runner.plan.wire, runner.job.seed
        pools = [vector_pool(shard, layout, looks_back, codec, seed) for shard in layout.shards]
        self.shards = [
            ShardReplica(shard, layout.dtype, mine, pool.take())
            for shard, mine, pool in zip(layout.shards, owned, pools, strict=True)
        ]
        #: For each shard, the numbers of its parameters in the replica.
        self.parameters = [[numbers[id(parameter)] for parameter in mine] for mine in owned]
        self.machine = WorkerMachine(number, len(self.shards), timing)
        self.batch: int | None = None
        self.finished = self._began = False
        hub = open_hub(self._place)
        self.loop = MachineLoop(Process(Role.WORKER, number), self.machine, hub, self, timing, desk)

    def walk(self) -> Walk:
        """Compute one batch after another, until the desk has none left."""
        runner, agenda = self.runner, self.runner.agenda
        self.loop.perform(self.machine.start(monotonic()))
        while (batch := self.next_batch()) is not None:
            for task in agenda.tasks(batch):
                computed = yield GradientRequest(task, agenda.task(task), self.machine.base[0])
                if computed is None:
                    return
                self._write(task, computed)
            self.loop.perform(self.machine.computed(monotonic()))
        runner.measure_memory()

    def next_batch(self) -> int | None:
        """Handle what arrives until there is a batch to compute; None when all are finished.

        Raises:
            WaitedTooLong: the servers have not answered before the deadline.
            Cancelled: the run has ended.
        """
        start = now()
        while self.batch is None and not self.finished:
            self.loop.turn(0.1)
            if self.runner.host.cancelled():
                raise Cancelled
            if now() - start > self.deadline * 1e9:
                raise WaitedTooLong(self.rank, self._awaited(), self.deadline, f"in batch {self.machine.batch}")
        if self._began:  # before the first batch it waited for the others to start
            self.runner.waited += now() - start
        self._began = True
        batch, self.batch = self.batch, None
        return batch

    def _awaited(self) -> str:
        machine = self.machine
        if not machine.entered or machine.stage is Stage.ASKING:
            return "the desk"
        return f"the server of shard {min(machine.awaited, default=0)}"

    def _write(self, task: int, computed: GradientSum) -> None:
        """Write the vectors to push for a task."""
        gradients, encoder = self.runner.learner.settle(computed), self.runner.encoder
        moving = self.runner.replica.moving
        for number, (shard, numbers) in enumerate(zip(self.shards, self.parameters, strict=True)):
            mine, vector = [gradients[n] for n in numbers], shard.vector
            if isinstance(vector, GradientVector):
                vector.write(mine, moving, self.machine.base)
            else:
                assert encoder is not None
                vector.bases[:] = self.machine.base
                encoder.write(number, mine, moving, (0.0, 0.0), vector.message, task, computed.part)
            shard.look_back()
        if encoder is not None:
            encoder.settle()  # what is pushed is pushed until it has arrived

    def _place(self, peer: Peer, kind: int, ints: tuple[int, ...], size: int) -> memoryview | None:
        """Receive parameters where the module computes with them, if the machine is about to take them."""
        machine = self.machine
        if kind == PUSHED:
            shard, wanted = ints[0], machine.stage is Stage.PUSHING and ints[2] == machine.batch
        elif kind == PULLED:
            shard, wanted = ints[0], machine.stage is Stage.PULLING
        else:
            return None
        if not wanted or shard not in machine.awaited or size != len(self.shards[shard].raw):
            return None
        return self.shards[shard].raw

    def bodies(self, message: Message, body: memoryview) -> Sequence[Buffer]:
        return (self.shards[message.shard].vector.bytes,) if isinstance(message, Push) else ()

    def carry_out(self, output: Output, body: memoryview) -> None:
        if isinstance(output, Compute):
            self.batch = output.batch
        elif isinstance(output, Finished):
            self.finished = True
        elif isinstance(output, Adopt) and output.shard == 0 and self.shards[0].buffers:
            self.runner.learner.set_buffers(self.shards[0].buffers)

    def handled(self, message: Message, body: memoryview) -> None:
        """Nothing has to be released."""

    def postpones(self, event: Received, message: Message) -> bool:
        return False

    def other(self, sender: Process, kind: int, ints: tuple[int, ...], body: memoryview) -> None:
        """No frame of another kind concerns a worker."""

    def arrived(self, process: Process) -> None:
        """The machine sends again what a process that was away has missed."""

    def departed(self, process: Process, why: str) -> None:
        """The machine asks for the newest views."""
