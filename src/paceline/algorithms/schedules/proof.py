"""Proving a pipeline's table before a process starts.

The table is walked with symbols, under the bounds of the real buffers. Proved are

- no worker waits for ever, and no message is left over: every send has its receive, in the same order;
- every micro-batch goes forward and backward once through every stage, on what its neighbours made of it;
- no version of a stage's weights is read before it is made or after it is dropped, and forward and backward of a
  micro-batch read the same one (where weights are predicted: the backward the newest);
- every gradient is in exactly one update, and all stages make the same updates of the same micro-batches.

One walk is enough: a worker never chooses what to do next (`algorithms.schedules.clock`), so if there is a bad end,
every order of events leads to it. The error is the shortest story of how it comes to that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.algorithms.schedules import BACKWARD, FORWARD, INPUTS, UPDATE, WEIGHTS, Table, Work
from paceline.algorithms.schedules.clock import Walk, clocked, ticks
from paceline.algorithms.schedules.worker import Agree, Channel, Compute, Effect, Receive, Send, SumUp, Update
from paceline.errors import PlanError
from paceline.narrative import Scene, Wait, format_story, format_waits


@dataclass
class Figures:
    """The counts of a walk."""

    works: int = 0
    messages: int = 0
    ticks: int = 0
    bubble: float = 0.0  # the share of all workers' ticks in which they do nothing
    in_flight: list[int] = field(default_factory=list)  # most micro-batches whose activations a stage keeps
    versions: list[int] = field(default_factory=list)  # of its weights that a stage holds
    staleness: int = 0  # most updates between a forward's version and the one that its gradient changes

    def as_dict(self) -> dict[str, object]:
        return dict(self.__dict__)


def prove_table(table: Table) -> Figures:
    """Raise PlanError with the story of the first fault; otherwise return what was counted."""
    checker = _Checker(table)
    walk = Walk.of(table)
    spans = []
    for timed in clocked(walk, ticks):
        checker.see(timed.place[1], timed.effect, timed.answer)
        spans.append((timed.start, timed.end))
    if walk.blocked:
        raise PlanError(_stuck(table, walk))
    checker.end(walk)
    figures = checker.figures
    figures.ticks, figures.bubble = _idle(spans, table.workers)
    return figures


def ticks_of(table: Table) -> tuple[int, float]:
    """Return how many ticks the table takes, and the share in which workers idle. Messages and updates take none."""
    return _idle([(timed.start, timed.end) for timed in clocked(Walk.of(table), ticks)], table.workers)


def _idle(spans: list[tuple[float, float]], workers: int) -> tuple[int, float]:
    last = max((end for _, end in spans), default=0.0)
    busy = sum(end - start for start, end in spans)
    return int(last), 1 - busy / (last * workers) if last else 0.0


class _Stage:
    """The progress of one stage."""

    def __init__(self) -> None:
        self.newest = 0
        self.forwards: dict[int, int] = {}  # micro-batch: version it read
        self.inputs: set[int] = set()  # whose gradient of inputs is made
        self.weights: set[int] = set()  # whose gradient of weights is made
        self.waiting: list[int] = []  # gradients not yet in an update
        self.updates: list[frozenset[int]] = []
        self.most = 0


class _Checker:
    """Checks each effect as the walk yields it. A message is the work that has made it."""

    def __init__(self, table: Table) -> None:
        self.table, self.figures = table, Figures(versions=list(table.versions))
        self.stages = [_Stage() for _ in table.stage_to_worker]
        self.past: list[Work] = []

    def see(self, worker: int, effect: Effect, answer: object) -> None:
        if isinstance(effect, Compute):
            work = effect.work
            self.holds(worker, work)
            check = {FORWARD: self.forward, BACKWARD: self.backward, INPUTS: self.backward, WEIGHTS: self.weights}
            check[work.what](work, effect.message)
        elif isinstance(effect, Update):
            self.holds(worker, effect.work)
            self.update(effect.work)
        elif isinstance(effect, Send):
            self.figures.messages += 1
        elif isinstance(effect, Agree):
            self.all_reduce(worker, effect)
        elif isinstance(effect, Receive):
            assert isinstance(answer, Work)
            if answer.micro != effect.micro:
                moral = f"it wants micro-batch {effect.micro}, and {answer.micro} is what comes next"
                raise self.fault([Send(effect.channel, answer.micro, None), effect], moral)

    def holds(self, worker: int, work: Work) -> None:
        if not 0 <= work.stage < self.table.stages or self.table.stage_to_worker[work.stage] != worker:
            raise self.fault([], f"worker {worker} does {work}, which it does not hold")
        self.past.append(work)
        self.figures.works += 1

    def need(self, work: Work, message: object, neighbour: int) -> None:
        if 0 <= neighbour < self.table.stages and message is None:
            what = "activations" if work.what == FORWARD else "gradients"
            raise self.fault([work], f"the {what} of micro-batch {work.micro} from stage {neighbour} have not arrived")

    def all_reduce(self, worker: int, effect: Agree) -> None:
        for number, stage in enumerate(self.stages):
            if self.table.stage_to_worker[number] == worker and stage.weights != set(stage.forwards):
                raise self.fault([effect], f"not all gradients of stage {number} are made")

    # --- computing --------------------------------------------------------------------------------------------------

    def forward(self, work: Work, message: object) -> None:
        stage = self.stages[work.stage]
        if work.micro in stage.forwards:
            raise self.fault([work, work], f"micro-batch {work.micro} goes forward through stage {work.stage} twice")
        self.need(work, message, work.stage - 1)
        self.read(work)
        stage.forwards[work.micro] = work.version
        # Activations are needed until the gradients of weights are made.
        stage.most = max(stage.most, len(stage.forwards) - len(stage.weights))

    def backward(self, work: Work, message: object) -> None:
        stage = self.stages[work.stage]
        if work.micro not in stage.forwards:
            raise self.fault([work], "it goes backward before it has gone forward")
        if work.micro in stage.inputs:
            raise self.fault([work, work], f"micro-batch {work.micro} goes backward through stage {work.stage} twice")
        self.need(work, message, work.stage + 1)
        self.read(work)
        self.same_version(work)
        stage.inputs.add(work.micro)
        if work.what == BACKWARD:
            stage.weights.add(work.micro)
            stage.waiting.append(work.micro)

    def weights(self, work: Work, message: object) -> None:
        stage = self.stages[work.stage]
        if work.micro not in stage.inputs:
            raise self.fault([work], "the gradients of inputs, from which those of weights follow, are not made yet")
        if work.micro in stage.weights:
            raise self.fault([work, work], "the gradients of weights are made already")
        self.read(work)
        self.same_version(work)
        stage.weights.add(work.micro)
        stage.waiting.append(work.micro)

    def update(self, work: Work) -> None:
        stage = self.stages[work.stage]
        if not stage.waiting:
            raise self.fault([work], "it makes an update of nothing: no gradient has come since the last one")
        if work.version != stage.newest + 1:
            raise self.fault([work], f"it says it makes version {work.version}, after version {stage.newest}")
        # The engines identify an update by its last micro-batch.
        if max(stage.waiting) != work.micro:
            raise self.fault([work], f"the last gradient in it is that of micro-batch {max(stage.waiting)}")
        stage.updates.append(frozenset(stage.waiting))
        first = min(stage.forwards[micro] for micro in stage.waiting)
        self.figures.staleness = max(self.figures.staleness, stage.newest - first)
        stage.waiting, stage.newest = [], work.version

    # --- versions ---------------------------------------------------------------------------------------------------

    def read(self, work: Work) -> None:
        stage, keeps = self.stages[work.stage], self.table.versions[work.stage]
        if work.version > stage.newest:
            last = self.made(work.stage, stage.newest)
            raise self.fault([*last, work], f"it reads version {work.version}, which is not made yet")
        if work.version <= stage.newest - keeps:
            used = [Work(work.stage, work.micro, FORWARD, stage.forwards[work.micro])] if work.what != FORWARD else []
            dropping = self.made(work.stage, work.version + keeps)
            versions = f"{keeps} version{'s' * (keeps > 1)}"
            moral = (
                f"it reads version {work.version}, which is dropped: stage {work.stage} holds {versions} of its weights"
            )
            raise self.fault([*used, *dropping, work], moral)

    def same_version(self, work: Work) -> None:
        stage = self.stages[work.stage]
        read = stage.forwards[work.micro]
        expected = stage.newest if self.table.predicts else read
        if work.version != expected:
            forward = Work(work.stage, work.micro, FORWARD, read)
            why = f"the newest is {expected}" if self.table.predicts else f"the forward read {read}"
            raise self.fault([forward, work], f"the backward reads version {work.version}, and {why}")

    def made(self, stage: int, version: int) -> list[Work]:
        return [work for work in self.past if (work.what, work.stage, work.version) == (UPDATE, stage, version)]

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self, walk: Walk) -> None:
        for (_, channel), pending in walk.in_flight.items():
            if pending:
                raise self.fault([Send(channel, pending[0].micro, None)], f"stage {channel[1]} never takes it")
        expected = set(range(self.table.micro_batches))
        for number, stage in enumerate(self.stages):
            for micros, what in ((set(stage.forwards), "forward"), (stage.weights, "backward")):
                if micros != expected:
                    lost = min(expected ^ micros)
                    raise self.fault([], f"micro-batch {lost} never goes {what} through stage {number}")
            if stage.waiting:
                raise self.fault(
                    [], f"the gradient of micro-batch {stage.waiting[0]} at stage {number} is in no update"
                )
            if stage.updates != self.stages[0].updates:
                pairs = zip(stage.updates, self.stages[0].updates, strict=False)
                first = next(
                    (n for n, (a, b) in enumerate(pairs) if a != b),
                    min(len(stage.updates), len(self.stages[0].updates)),
                )
                raise self.fault([], f"stages 0 and {number} make update {first} of different micro-batches")
        self.figures.in_flight = [stage.most for stage in self.stages]

    def fault(self, scenes: list[Work | Effect], moral: str) -> PlanError:
        steps = [Scene(_who(self.table, work), _does(work)) for work in scenes]
        return PlanError(format_story(f"The table of {self.table.name} is wrong:", steps, moral))


def _stuck(table: Table, walk: Walk) -> str:
    """Return the story of a deadlock, where no worker can continue."""
    waits = []
    for place, effect in walk.blocked.items():
        did = _does(walk.last[place]) if place in walk.last else "starts"
        match effect:
            case Receive(channel, micro):
                wants, other = f"send {_message(channel, micro)}", table.stage_to_worker[channel[0]]
            case Send(channel):
                wants = f"take a message: {walk.slots} from stage {channel[0]} are ready"
                other = table.stage_to_worker[channel[1]]
            case _:
                wants, other = "join the all-reduce", walk.missing(place, effect)[0][1]
        waits.append(Wait(f"worker {place[1]}", did, wants, f"worker {other}"))
    return format_waits(f"The table of {table.name} gets stuck:", waits)


def _who(table: Table, what: Work | Effect) -> str:
    match what:
        case Send((stage, _)) | Receive((_, stage)) | Agree(stage):
            return f"worker {table.stage_to_worker[stage]}"
    assert isinstance(what, Work)
    return f"worker {table.stage_to_worker[what.stage]}"


def _message(channel: Channel, micro: int) -> str:
    what = "activations" if channel[1] > channel[0] else "gradients"
    return f"the {what} of micro-batch {micro} from stage {channel[0]}"


def _does(what: Work | Effect) -> str:
    match what:
        case Send(channel, micro):
            return f"sends {_message(channel, micro)}"
        case Receive(channel, micro):
            return f"takes {_message(channel, micro)}"
        case SumUp(number):
            return f"sums up the gradient of stage {number}"
        case Agree():
            return "joins the all-reduce"
        case Compute(work) | Update(work):
            return _does(work)
    assert isinstance(what, Work)
    stage, reading = f"stage {what.stage}", f"for micro-batch {what.micro}, reading version {what.version}"
    return {
        FORWARD: f"takes micro-batch {what.micro} forward through {stage}, reading version {what.version}",
        BACKWARD: f"takes micro-batch {what.micro} backward through {stage}, reading version {what.version}",
        INPUTS: f"makes the gradients of {stage}'s inputs {reading}",
        WEIGHTS: f"makes the gradients of {stage}'s weights {reading}",
        UPDATE: f"updates {stage}: version {what.version}",
    }[what.what]
