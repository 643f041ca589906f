"""A method with a server in a virtual world: desk, shards and workers on one clock.

Every shard serves one push at a time, in the order of arrival; under Hogwild all at once. The model of the server is
either its machines alone (`TimedServer`) or every worker's real arithmetic (`engines.arithmetic.servers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from paceline.core.agenda import Agenda
from paceline.core.server.actions import Action, Apply, Held, Lease, Noted, Wait
from paceline.core.server.desk import Desk
from paceline.core.server.events import Compute, Death, Finish, Pull, Push
from paceline.core.server.worker import FINISHED, Worker
from paceline.engines.arithmetic.servers import ServerArithmetic
from paceline.engines.virtual.clock import Clock
from paceline.engines.virtual.world import ComputeTimes, World, nanoseconds
from paceline.errors import RunFailed
from paceline.plans.methods.server import Server
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind, Row


class ServerModel(Protocol):
    """A server that can be simulated."""

    def base(self, worker: int) -> int:
        """The version that a worker computes with."""

    def pull(self, event: Pull) -> Action: ...

    def push(self, event: Push) -> Action: ...

    def bytes(self, event: Push) -> int:
        """Return the bytes that a push moved, both ways."""


class TimedServer:
    """The shards' machines without parameters: who waits and how old gradients are, not how well they learn."""

    def __init__(self, plan: Plan, method: Server, piece: int) -> None:
        self.machine, self.piece, self.versions = method.machine(plan.workers), piece, method.traits.versioned
        self.states = [[0] * self.machine.ints for _ in range(plan.shards)]
        for state in self.states:
            self.machine.init(state)

    def base(self, worker: int) -> int:
        return self.machine.base(self.states[0], worker) if self.versions else -1

    def pull(self, event: Pull) -> Action:
        return self.machine.handle(self.states[event.shard], event)

    def push(self, event: Push) -> Action:
        action = self.machine.handle(self.states[event.shard], event)
        return Apply(-1, -1) if isinstance(action, Apply) and not self.versions else action

    def bytes(self, event: Push) -> int:
        return 2 * self.piece


def run_server(
    plan: Plan, method: Server, agenda: Agenda, world: World, size: int, arithmetic: ServerArithmetic | None
) -> list[Row]:
    """Run a method with a server and return the rows of its trace."""
    run = _Run(plan, method, agenda, world, size, arithmetic)
    run.run()
    return run.rows


class _Run:
    """One simulated run."""

    def __init__(
        self, plan: Plan, method: Server, agenda: Agenda, world: World, size: int, arithmetic: ServerArithmetic | None
    ) -> None:
        self.plan, self.agenda, self.world, self.arithmetic = plan, agenda, world, arithmetic
        self.clock, self.compute_times, self.rows = Clock(), ComputeTimes(world, plan.workers), list[Row]()
        #: Bytes of a shard's part of the parameters, on the wire.
        self.piece = round(plan.wire.size(size) / plan.shards)
        self.server: ServerModel = arithmetic or TimedServer(plan, method, self.piece)
        self.one_at_a_time = method.traits.versioned
        self.desk = Desk(plan.workers, agenda.leases, method.gate)
        self.desk_state = [0] * self.desk.ints
        self.desk.init(self.desk_state)
        #: When each shard has served the pushes that have arrived so far.
        self.free = [0.0] * plan.shards
        #: Pushes that shard 0 has applied.
        self.applied = 0
        self.workers = [Worker(number, plan.shards, method.traits.gathers) for number in range(plan.workers)]
        #: Workers that the gate made wait, until the desk changes.
        self.waiting: set[int] = set()
        self.dead: set[int] = set()

    def run(self) -> None:
        """Schedule all workers and deaths, and run the clock until no event is left."""
        for number, when in self.world.deaths.items():
            if number < self.plan.workers:
                self.clock.at(when, self._death(number))
        for worker in self.workers:
            self.clock.at(0.0, self._next(worker))
        self.clock.run()
        if self.desk.finished(self.desk_state) < self.agenda.leases:
            raise RunFailed("every worker died; nothing was left to finish the run")

    def _next(self, worker: Worker) -> Callable[[], None]:
        return lambda: None if worker.number in self.dead else self._advance(worker)

    def _advance(self, worker: Worker) -> None:
        """Perform the worker's next command, and schedule what follows it."""
        command, now = worker.command(), self.clock.now
        if isinstance(command, Compute):
            self.clock.at(now + self._compute(worker, command), self._next(worker))
        elif isinstance(command, Push):
            arrives = now + self.world.travel(self.piece)
            self.clock.at(arrives, lambda: self._arrive(worker, command, now))
        elif isinstance(command, Pull):
            self.clock.at(now + self.world.latency, lambda: self._pull(worker, command))
        elif command is not None:
            action = self.desk.handle(self.desk_state, command)
            worker.answer(action)
            if isinstance(command, Finish) or isinstance(action, Lease):
                self._wake()
            if isinstance(action, Wait):
                self.waiting.add(worker.number)
            elif worker.stage != FINISHED:
                self._advance(worker)

    def _wake(self) -> None:
        """Let workers that wait ask again, since the desk has changed."""
        waiting, self.waiting = self.waiting, set()
        for number in sorted(waiting):
            self.clock.at(self.clock.now, self._next(self.workers[number]))

    def _compute(self, worker: Worker, command: Compute) -> float:
        """Compute all tasks of a lease, and return the seconds that they take."""
        number, begins = worker.number, self.clock.now
        for task in self.agenda.tasks(command.batch):
            chunks = self.agenda.task(task)
            samples, loss = sum(c.samples for c in chunks), math.nan
            ends = begins + self.compute_times.draw(number, samples)
            if self.arithmetic is not None:
                loss = self.arithmetic.compute(number, chunks).mean
            base, times = self.server.base(number), (nanoseconds(begins), nanoseconds(ends))
            if self.world.deaths.get(number, math.inf) > ends:
                self.rows.append(Row(Kind.COMPUTE, number, task, -1, base, -1, *times, samples=samples, value=loss))
            begins = ends
        worker.answer(Noted())
        return begins - self.clock.now

    def _pull(self, worker: Worker, command: Pull) -> None:
        if worker.number in self.dead:
            return
        before = self.server.base(worker.number)
        worker.answer(self.server.pull(command))
        size = 0 if self.server.base(worker.number) == before else self.piece
        self.clock.at(self.clock.now + self.world.travel(size), self._next(worker))

    def _arrive(self, worker: Worker, command: Push, sent: float) -> None:
        """Apply a push that has arrived at its shard, when the shard is free."""
        if worker.number in self.dead:
            return  # the message is lost with its sender
        shard, now = command.shard, self.clock.now
        action = self.server.push(command)
        start = max(now, self.free[shard]) if self.one_at_a_time else now
        end = start + (self.world.update if isinstance(action, Apply) else 0.0)
        self.free[shard] = end
        times = nanoseconds(sent), nanoseconds(end), nanoseconds(start - now)
        if isinstance(action, Apply | Held):
            row = (command.batch, shard, action.base, action.version)
            self.rows.append(Row(Kind.APPLY, worker.number, *row, *times, 0, self.server.bytes(command), 0.0))
            if shard == 0 and isinstance(action, Apply):
                self.applied += 1
                if self.arithmetic is not None:
                    self.arithmetic.snapshots.keep(self.agenda.made_by(self.applied), end)
        else:
            self.rows.append(Row(Kind.DROP, worker.number, command.batch, shard, start=times[0], end=times[1]))
        worker.answer(action)
        self.clock.at(end + self.world.travel(self.piece), self._next(worker))

    def _death(self, worker: int) -> Callable[[], None]:
        """Return the event of a worker's death."""

        def die() -> None:
            if self.workers[worker].stage == FINISHED:
                return
            self.dead.add(worker)
            self.desk.handle(self.desk_state, Death(worker))
            at = nanoseconds(self.clock.now)
            self.rows.append(Row(Kind.DEATH, worker, self.workers[worker].batch, start=at, end=at))
            self._wake()

        return die
