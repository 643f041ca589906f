"""A plan in a virtual world: in time only (`simulate`), or with the job's real arithmetic (`train`)."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from paceline.core.agenda import Agenda
from paceline.core.collectives import Collective, Shards, advance
from paceline.core.server.actions import Apply, Held, Lease, Noted, Wait
from paceline.core.server.events import Compute, Death, Finish, Pull, Push
from paceline.core.server.machines import Desk
from paceline.core.server.worker import HOME, Worker
from paceline.engines.arithmetic.pipeline import StagedPipeline
from paceline.engines.arithmetic.servers import Gathered, Server, by_shards
from paceline.engines.arithmetic.synchronous import Coordinated, InStep, in_step
from paceline.engines.outcome import Outcome, Snapshot
from paceline.engines.setup import Setup
from paceline.engines.threads import threads
from paceline.engines.virtual.clock import Clock
from paceline.engines.virtual.pipeline import by_schedule
from paceline.engines.virtual.world import Fate, World
from paceline.errors import RunFailed, WorkerDied
from paceline.errors.failure import Failure, Place
from paceline.gradients.payload import Payload
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind, Row, Trace

CLOSED_FORM_FROM = 65  # workers: up to 64 the closed form is proved equal to the table, which is then executed


def train(setup: Setup, world: World) -> Outcome:
    """The job's real arithmetic, in virtual time."""
    with threads(setup.plan.threads):
        return _train(setup, world)


def _train(setup: Setup, world: World) -> Outcome:
    numbers = setup.layout.bytes
    if setup.plan.gate is not None:
        apart = by_shards(setup)
        rows = _by_shards(setup.plan, setup.agenda, world, numbers, apart)
        return _outcome(rows, apart.values(), apart.snapshots)
    if setup.blueprint is not None:
        piped = StagedPipeline(setup)
        return _outcome(by_schedule(setup.plan, setup.agenda, world, piped), piped.values(), piped.snapshots)
    together = in_step(setup)
    if setup.plan.meeting is not None:
        numbers = Payload.length(setup.layout) * setup.layout.bytes_per_number
    rows = _in_step(setup.plan, setup.agenda, world, numbers, together)
    return _outcome(rows, together.values(), together.snapshots)


def simulate(plan: Plan, agenda: Agenda, world: World, parameter_bytes: int = 220_200) -> Trace:
    """Time only: what the plan would do in this world, without a model. A programme is taken to evaluate twice in an
    update, where it stands and where it goes; its shards' algebra and products take no time.
    """
    if plan.schedule is not None:
        rows = by_schedule(plan, agenda, world, None)
    else:
        rows = (_by_shards if plan.gate is not None else _in_step)(plan, agenda, world, parameter_bytes, None)
    return Trace.of(sorted(rows, key=lambda row: row.end))


def _outcome(rows: list[Row], values: list[Tensor], snapshots: list[Snapshot]) -> Outcome:
    trace = Trace.of(sorted(rows, key=lambda row: row.end))
    return Outcome(trace, max((row.end for row in rows), default=0) / 1e9, values, snapshots)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


# --- plans that keep step -------------------------------------------------------------------------------------------


def _in_step(plan: Plan, agenda: Agenda, world: World, size: int, sums: InStep | None) -> list[Row]:
    fate, rows, ready = Fate(world, plan.workers), list[Row](), [0.0] * plan.workers
    meeting: Collective | None = plan.meeting if plan.synchronous else None  # type: ignore[assignment]
    alone, size = meeting is None, round(plan.wire.size(size))

    def heard(update: int, size: int, losses: list[float]) -> None:
        """What a programme does after an update's first evaluation."""
        assert meeting is not None
        for worker, loss in enumerate(losses):
            samples = sum(c.samples for c in agenda.mine(update, worker))
            times = _computing(fate, worker, samples, ready, update)
            rows.append(Row(Kind.COMPUTE, worker, update, -1, update, -1, *times, value=loss))
        rows.extend(_meet(meeting, plan.workers, world, size, ready, update))

    if isinstance(sums, Coordinated):
        sums.heard = heard
    for update in range(agenda.updates):
        if alone:
            who = update % plan.workers
            parts = [(who, agenda.filled(update))]
        else:
            parts = [(worker, agenda.mine(update, worker)) for worker in range(plan.workers)]
        shares = []
        for worker, chunks in parts:
            samples, loss = sum(c.samples for c in chunks), math.nan
            times = _computing(fate, worker, samples, ready, update)
            if sums is not None and (worker == 0 or not alone):
                shares.append(sums.compute(worker, chunks))
                loss = shares[-1].mean
            rows.append(Row(Kind.COMPUTE, worker, update, -1, update, -1, *times, samples=samples, value=loss))
        if meeting is not None and plan.meets_after(update, agenda.updates):
            rows += _meet(meeting, plan.workers, world, size, ready, update)
        if plan.coordinator is not None and sums is None:  # without numbers to decide by: the first trial is taken
            heard(update, size, [])
            heard(update, size, [math.nan] * plan.workers)
        if shares and sums is not None:
            sums.apply(update, shares)
            sums.keep(update + 1, max(ready))
        for worker, _ in parts:
            start = ready[worker]
            ready[worker] += world.update
            rows.append(Row(Kind.APPLY, worker, update, 0, update, update + 1, _ns(start), _ns(ready[worker])))
    return rows


def _computing(fate: Fate, worker: int, samples: int, ready: list[float], update: int) -> tuple[int, int]:
    """Move a worker's clock over a computation: when it began and ended, in nanoseconds."""
    start = ready[worker]
    ready[worker] += fate.compute_seconds(worker, samples)
    if fate.world.deaths.get(worker, math.inf) < ready[worker]:
        advice = "the plan cannot go on without it"
        raise WorkerDied(Failure(worker, "died, as the world willed", Place(update), advice=advice))
    return _ns(start), _ns(ready[worker])


def _meet(meeting: Collective, workers: int, world: World, size: int, ready: list[float], update: int) -> list[Row]:
    """Move every worker's clock to the end of the collective; one row each."""
    came, piece = list(ready), size / meeting.segments(workers)
    waited, sent = [0.0] * workers, [0] * workers
    if workers >= CLOSED_FORM_FROM:
        end = max(came) + meeting.seconds(workers, size, world.latency, world.bandwidth)
        ready[:] = [end] * workers
        waited = [max(came) - c for c in came]
    else:
        for row in zip(*(meeting.steps(worker, workers) for worker in range(workers)), strict=True):
            before, ready[:] = list(ready), advance(ready, row, piece, world.latency, world.bandwidth)
            for worker, step in enumerate(row):
                if step.receive is not None:
                    waited[worker] += max(0.0, before[step.receive.other] - before[worker])
                if step.send is not None:
                    sent[worker] += round((step.send.stop - step.send.first) * piece)
    return [
        Row(Kind.MEET, w, update, -1, update, -1, _ns(came[w]), _ns(ready[w]), _ns(waited[w]), 0, sent[w], 0.0)
        for w in range(workers)
    ]


# --- plans with a server --------------------------------------------------------------------------------------------


def _by_shards(plan: Plan, agenda: Agenda, world: World, size: int, sums: Server | None) -> list[Row]:
    server = _Server(plan, agenda, world, size, sums)
    server.run()
    return server.rows


class _Server:
    """Desk, shards and workers on one clock. Every shard serves one push at a time, in the order of arrival."""

    def __init__(self, plan: Plan, agenda: Agenda, world: World, size: int, sums: Server | None) -> None:
        assert plan.gate is not None
        assert isinstance(plan.meeting, Shards)
        self.plan, self.agenda, self.world, self.sums = plan, agenda, world, sums
        self.clock, self.fate, self.rows = Clock(), Fate(world, plan.workers), list[Row]()
        shards = plan.shards
        self.piece = round(plan.wire.size(size) / shards)
        self.desk = Desk(plan.workers, agenda.leases, plan.gate)
        self.desk_state = [0] * self.desk.ints
        self.desk.init(self.desk_state)
        self.shard = plan.meeting.machine(plan.workers)
        self.states = [[0] * self.shard.ints for _ in range(shards)]
        for state in self.states:
            self.shard.init(state)
        self.free = [0.0] * shards
        self.workers = [Worker(number, shards, plan.gathers > 0) for number in range(plan.workers)]
        self.waiting: set[int] = set()
        self.dead: set[int] = set()

    def run(self) -> None:
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
            elif worker.stage != HOME:
                self._advance(worker)

    def _wake(self) -> None:
        """The desk has changed: those who wait may ask again."""
        waiting, self.waiting = self.waiting, set()
        for number in sorted(waiting):
            self.clock.at(self.clock.now, self._next(self.workers[number]))

    def _compute(self, worker: Worker, command: Compute) -> float:
        number, begins = worker.number, self.clock.now
        for task in self.agenda.tasks(command.batch):
            chunks = self.agenda.task(task)
            samples, loss = sum(c.samples for c in chunks), math.nan
            ends = begins + self.fate.compute_seconds(number, samples)
            if self.sums is not None:
                computed = self.sums.compute(number, chunks)
                loss = computed.loss / computed.weight if computed.weight else math.nan
            base, times = self.shard.base(self.states[0], number), (_ns(begins), _ns(ends))
            if self.world.deaths.get(number, math.inf) > ends:
                self.rows.append(Row(Kind.COMPUTE, number, task, -1, base, -1, *times, samples=samples, value=loss))
            begins = ends
        worker.answer(Noted())
        return begins - self.clock.now

    def _pull(self, worker: Worker, command: Pull) -> None:
        if worker.number in self.dead:
            return
        state = self.states[command.shard]
        size = 0 if self.shard.base(state, worker.number) == state[0] else self.piece
        worker.answer(self.shard.handle(state, command))  # type: ignore[arg-type]
        if isinstance(self.sums, Gathered):
            self.sums.pull(worker.number)
        self.clock.at(self.clock.now + self.world.travel(size), self._next(worker))

    def _arrive(self, worker: Worker, command: Push, sent: float) -> None:
        if worker.number in self.dead:
            return  # the message died with its sender
        shard, now = command.shard, self.clock.now
        action = self.shard.handle(self.states[shard], command)
        start = max(now, self.free[shard]) if self.plan.locked else now
        end = start + (self.world.update if isinstance(action, Apply) else 0.0)
        self.free[shard] = end
        back = end + self.world.travel(self.piece)
        if isinstance(action, Apply | Held):
            carried = 2 * self.piece
            if self.sums is not None:
                carried = self.sums.push(command, action.version) or carried
                if shard == 0 and isinstance(action, Apply):
                    self.sums.keep(self.agenda.made_by(action.version), end)
            base, version = (action.base, action.version) if self.plan.locked else (-1, -1)
            self.rows.append(
                Row(
                    Kind.APPLY, worker.number, command.batch, shard, base, version,
                    _ns(sent), _ns(end), _ns(start - now), 0, carried, 0.0,
                )
            )  # fmt: skip
        else:
            self.rows.append(Row(Kind.DROP, worker.number, command.batch, shard, start=_ns(sent), end=_ns(end)))
        worker.answer(action)
        self.clock.at(back, self._next(worker))

    def _death(self, worker: int) -> Callable[[], None]:
        def die() -> None:
            if self.workers[worker].stage == HOME:
                return
            self.dead.add(worker)
            self.desk.handle(self.desk_state, Death(worker))
            at = _ns(self.clock.now)
            self.rows.append(Row(Kind.DEATH, worker, self.workers[worker].batch, start=at, end=at))
            self._wake()

        return die
