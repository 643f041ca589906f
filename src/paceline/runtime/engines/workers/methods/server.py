"""Every method with a server: the desk leases batches, and gradients or replicas are pushed to shards.

    worker                          desk and shards, in shared memory, each under its lock
    ──────                          ──────────────────────────────────────────────────────
    1 ask for a batch ───────────▶  the desk leases the next one, or the gate says wait
    2 compute its gradient
    3 push it to every shard ────▶  the shard makes its next version (`engines.servers.port`)
    4 finish the batch ──────────▶  the desk counts it, and leases the next one

There is no server process: desk and shards are machines whose state lies in shared memory, and the worker that holds
the lock runs them. Where generated code computes, it does all of this for many batches in one call (`native_pushes`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from time import perf_counter_ns as now
from typing import Any

from torch import Tensor

from paceline.algorithms.server.messages import Action, Apply, Ask, Finish, Lease, Pull, Push, Wait
from paceline.algorithms.server.worker import Client
from paceline.plans.methods import Server
from paceline.runtime.engines.servers.ports import open_ports
from paceline.runtime.engines.servers.shard_memory import Locked, WorkerSide
from paceline.runtime.engines.workers.arena import DESK_LOCK, Arena
from paceline.runtime.engines.workers.methods.native_pushes import native_pushes
from paceline.runtime.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk, served
from paceline.runtime.links.waiting import NAP_SECONDS, Cancelled
from paceline.training.gradients.payload import GradientSum, Payload


def serve(runner: PlanRunner, method: Server, arena: Arena) -> Walk:
    """Return the walk of a worker of a plan with a server."""
    # Opened before the run starts: other workers may push as soon as they may start.
    worker = ServedWorker(runner, method, arena)
    runner.meter.optimizer = worker.ports[0].optimizer or runner.optimizer
    worker.resume()
    return worker.walk()


class ServedWorker:
    """Answers the commands of a worker's program: at the desk, at its ports to the shards, and by computing."""

    def __init__(self, runner: PlanRunner, method: Server, arena: Arena) -> None:
        self.runner, self.method, self.arena, self.gathers = runner, method, arena, method.traits.gathers
        side = WorkerSide(
            runner.number,
            runner.plan,
            runner.learner,
            runner.optimizer,
            runner.layout,
            runner.encoder,
            runner.ensure_trace_space,
            runner.record,
            runner.state_writer.server_optimizer,
        )
        slots = [Payload(runner.layout, flat) for flat in arena.slots]
        self.ports = open_ports(side, arena.shards, self._shard_lock, slots)
        self.desk_lock = arena.lock(DESK_LOCK, runner.waiter, "the desk")
        self.gradients: list[Tensor | None] = []
        self.native = native_pushes(runner, arena, self.ports, self.desk_lock)
        #: The user's loop has ended: what was computed is still pushed, and no other batch is begun.
        self.leaving = False
        self.answers: dict[type, Callable[[Any], object]] = {
            Push: self.push,
            Pull: self.pull,
            Ask: self.lease,
            Finish: self.lease,
        }

    def _shard_lock(self, number: int, shared: bool) -> Locked:
        """Return the lock of a shard; under Hogwild only checkpoints need it, and it is shared."""
        if shared and self.runner.state_writer.state_buffer is None:
            return nullcontext(0)
        what = "a checkpoint" if shared else f"shard {number}"
        return self.arena.lock(number + 1, self.runner.waiter, what, shared)

    def resume(self) -> None:
        writer = self.runner.state_writer
        for port in self.ports:
            port.resume(self.runner.resume_point.resumed, writer.found)

    def walk(self) -> Walk:
        """Run the program; requests the gradients, which its driver computes."""
        program = self.method.program(Client(self.runner.number, len(self.ports)))
        return served(program, self.compute, self.answers)

    def compute(self, lease: Lease) -> Generator[GradientRequest, GradientSum | None, Lease | None]:
        """Compute the gradient of a lease, or of a later one; None where no more gradients will come."""
        while self.native is not None and (reached := self.native.make(lease)):
            lease, self.gradients = reached, self.native.gradients
            if self.native.computed:
                return lease
        tasks = self.runner.agenda.tasks(lease.batch)
        computed = 0 if self.leaving else (yield from self._compute(tasks))
        self.leaving = computed < len(tasks)
        return lease if computed else None

    def _compute(self, tasks: Sequence[int]) -> Generator[GradientRequest, GradientSum | None, int]:
        """Have the gradients of these tasks computed; return how many were."""
        agenda, port = self.runner.agenda, self.ports[0]
        for done, task in enumerate(tasks):
            if agenda.begins(task):
                port.begin_part()
            computed = yield GradientRequest(task, agenda.task(task), port.base)
            if computed is None:
                return done
            self.gradients = port.finalize(task, computed)
            del computed  # its memory serves the next gradient
        return len(tasks)

    def push(self, command: Push) -> Action:
        action = self.ports[command.shard].push(command, self.gradients)
        if self.gathers and isinstance(action, Apply):
            self.runner.snapshot(action.version, self.runner.values)
        return action

    def pull(self, command: Pull) -> Action:
        return self.ports[command.shard].pull(command)

    def lease(self, command: Ask | Finish) -> Lease | None:
        """Wait for the next batch; None where all are applied, or the user's loop has ended."""
        self.gradients = []  # before the next ones are made: what a step touches should stay in the cache
        action = self._ask_desk(command)
        while isinstance(action, Wait) and not self.leaving:
            self._wait()
            action = self._ask_desk(Ask(command.worker))
        return action if isinstance(action, Lease) else None

    def _ask_desk(self, command: Ask | Finish) -> Action:
        """Send a command to the desk; a finished batch may open the gate for others."""
        runner, desk = self.runner, self.arena.desk
        assert desk is not None
        action, finished = desk.handle(command, self.desk_lock)
        if isinstance(command, Finish):
            for doorbell in self.arena.doorbells:
                doorbell.ring()  # a worker that waits at the gate may ask again
            runner.state_writer.finished(runner.agenda.done_by(finished - 1), runner.agenda.done_by(finished))
            if not self.gathers:
                runner.snapshot(runner.agenda.made_by(finished), self.ports[0].values)
        return action

    def _wait(self) -> None:
        """Sleep until the desk has changed."""
        runner, start = self.runner, now()
        self.arena.doorbells[runner.number].nap(NAP_SECONDS, runner.host.cancelled)
        runner.waited += now() - start
        if runner.host.cancelled():
            raise Cancelled
