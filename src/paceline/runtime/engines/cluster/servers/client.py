"""A worker's side of the servers: it answers the commands of its program over sockets.

Ask, Finish     a machine handles what arrives until it wants a batch computed (`algorithms.cluster.worker`)
Compute         one vector for each shard
Push            the machine pushes all of them at once, and again what is not answered
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import monotonic
from time import perf_counter_ns as now
from typing import Any, Protocol

from paceline.algorithms.cluster import messages
from paceline.algorithms.cluster.messages import Message, Process, Pulled, Pushed, Role
from paceline.algorithms.cluster.outputs import Adopt, ComputeGradient, Finished, Output, Timing
from paceline.algorithms.cluster.worker import Stage, WorkerMachine
from paceline.algorithms.server.messages import Ask, Finish, Lease, Pull, Push
from paceline.algorithms.server.worker import Client
from paceline.errors import WaitedTooLong
from paceline.plans.plan import server_of
from paceline.runtime.engines.cluster.servers.centre import CentreSide
from paceline.runtime.engines.cluster.servers.gradient_side import GradientSide
from paceline.runtime.engines.cluster.servers.loop import MachineLoop, kind_of
from paceline.runtime.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk, served
from paceline.runtime.engines.workers.worker_context import REQUESTED
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.links.tcp.hub import Hub, Received
from paceline.runtime.links.waiting import Cancelled
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.worker_state import WorkerState

PUSHED, PULLED = kind_of(Pushed), kind_of(Pulled)


class Side(Protocol):
    """What a worker computes with, and what it pushes."""

    def begin(self, task: int) -> None:
        """Prepare for a task, which may be the first on another part of the data."""

    def take(self, task: int, computed: GradientSum, bases: Sequence[int]) -> None:
        """Take what was computed from these versions, to push it when the last task of the batch is computed."""

    def body(self, shard: int) -> Sequence[Buffer]:
        """Return what is pushed to a shard, the same until the answer is adopted."""

    def room(self, shard: int, size: int) -> memoryview:
        """Return memory to receive so many bytes of an answer in: the module does not compute until it is adopted."""

    def detach_receive_buffer(self, shard: int) -> None:
        """Return other memory from now on: another answer may still be arriving in that which was returned."""

    def adopt(self, shard: int, version: int, pushed: bool, body: memoryview) -> None:
        """Compute from now on with the answer to a push or to a pull, which may have arrived in the room for it."""

    def state(self) -> WorkerState:
        """Return what is this worker's own, for a checkpoint."""


def side_of(runner: PlanRunner, number: int) -> Side:
    """Return the worker's side of its method; `number` is that of its process."""
    server = server_of(runner.plan)
    return GradientSide(runner, server, number) if server.exchange is None else CentreSide(runner, server.exchange)


class ServerClient:
    """`loop.MachineHost` of a worker."""

    def __init__(
        self,
        number: int,
        runner: PlanRunner,
        timing: Timing,
        desk: Address,
        deadline: float,
        open_hub: Callable[[Callable[[Peer, int, tuple[int, ...], int], memoryview | None]], Hub],
    ) -> None:
        """`open_hub` makes the hub of this process, given where to receive bodies."""
        self.runner, self.deadline, self.rank = runner, deadline, number % runner.plan.workers
        self.method, self.side = server_of(runner.plan), side_of(runner, number)
        self.machine = WorkerMachine(number, len(runner.layout.shards), timing, pulls=bool(self.method.gathers))
        #: Where the answer of a shard is being received. If another one is adopted first, the module computes elsewhere
        #: from then on, since the first may still arrive there.
        self._arriving: dict[int, memoryview] = {}
        self.batch: int | None = None
        self.finished = self._began = False
        #: The updates of the checkpoint for which this worker has left its state last.
        self._left = runner.resume_point.updates
        hub = open_hub(self._place)
        self.loop = MachineLoop(Process(Role.WORKER, number), self.machine, hub, self, timing, desk)

    def walk(self) -> Walk:
        """Run the program of the method, until the desk has no batch left."""
        self.loop.perform(self.machine.start(monotonic()))
        program = self.method.program(Client(self.rank, self.machine.shards))
        answers: dict[type, Callable[[Any], object]] = {
            Ask: self.lease,
            Finish: self.lease,
            Pull: self.pull,
            Push: self.push,
        }
        return served(program, self.compute, answers)

    def lease(self, command: Ask | Finish) -> Lease | None:
        """Wait for the next batch, which is the same one where a shard has refused its gradient; None at the end."""
        batch = self.next_batch()
        if batch is None:
            self.runner.measure_memory()
        return None if batch is None else Lease(batch, again=False)

    def pull(self, command: Pull) -> None:
        """Do nothing: where a batch needs the newest parameters, the machine has pulled them before it is due."""

    def push(self, command: Push) -> None:
        """Push to every shard at once, whichever is named first."""
        if self.machine.stage is Stage.COMPUTING:
            self.loop.perform(self.machine.computed(monotonic()))

    def compute(self, lease: Lease) -> Generator[GradientRequest, GradientSum | None, Lease | None]:
        """Compute the gradient of a batch."""
        agenda, side = self.runner.agenda, self.side
        for task in agenda.tasks(lease.batch):
            side.begin(task)
            version = self.machine.base[0] // (self.method.gathers or 1)
            computed = yield GradientRequest(task, agenda.task(task), version)
            if computed is None:
                return None
            side.take(task, computed, self.machine.base)
            del computed  # its memory serves the next gradient
        return lease

    def next_batch(self) -> int | None:
        """Handle what arrives until there is a batch to compute; None when all are finished.

        Raises:
            WaitedTooLong: the servers have not answered before the deadline.
            Cancelled: the run has ended.
        """
        start = now()
        while self.batch is None and not self.finished:
            self.loop.turn(0.1)
            self._leave_state()
            if self.runner.host.cancelled():
                raise Cancelled
            if now() - start > self.deadline * 1e9:
                raise WaitedTooLong(self.rank, self._awaited(), self.deadline, f"in batch {self.machine.batch}")
        if self._began:  # before the first batch it waited for the others to start
            self.runner.waited += now() - start
        self._began = True
        batch, self.batch = self.batch, None
        return batch

    def _leave_state(self) -> None:
        """Leave what this worker owes for a checkpoint; it is asked for while nothing is leased."""
        runner, requested = self.runner, self.runner.shared.checkpoints[REQUESTED]
        if requested > self._left and self.machine.stage is Stage.ASKING:
            self._left = requested
            runner.state_writer.leave(requested, self.side.state())

    def _awaited(self) -> str:
        machine = self.machine
        if not machine.entered or machine.stage is Stage.ASKING:
            return "the desk"
        return f"the server of shard {min(machine.awaited, default=0)}"

    def _place(self, peer: Peer, kind: int, ints: tuple[int, ...], size: int) -> memoryview | None:
        """Receive parameters where they are expected, if the machine is about to take them."""
        machine = self.machine
        if kind == PUSHED:
            shard, is_expected = ints[0], machine.stage is Stage.PUSHING and ints[2] == machine.batch
        elif kind == PULLED:
            shard, is_expected = ints[0], machine.stage is Stage.PULLING
        else:
            return None
        if not is_expected or shard not in machine.awaited or shard in self._arriving:
            return None  # a push that was sent twice has two answers, of which the first one is taken
        self._arriving[shard] = self.side.room(shard, size)
        return self._arriving[shard]

    def bodies(self, to: Process, message: Message, body: memoryview) -> Sequence[Buffer]:
        return self.side.body(message.shard) if isinstance(message, messages.Push) else ()

    def carry_out(self, output: Output, body: memoryview) -> None:
        if isinstance(output, ComputeGradient):
            self.batch = output.batch
        elif isinstance(output, Finished):
            self.finished = True
        elif isinstance(output, Adopt):
            if not self.machine.awaited:  # of what is written again, a push may be on its way to a server given up
                self.loop.hub.copy_queues()
            self.side.adopt(output.shard, output.version, output.pushed, body)
            room = self._arriving.pop(output.shard, None)
            if room is not None and room.obj is not body.obj:
                self.side.detach_receive_buffer(output.shard)

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
