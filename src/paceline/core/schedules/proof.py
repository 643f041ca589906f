"""Proving a pipeline's table before a process starts.

The table is walked with symbols, under the bounds of the real buffers. Proved are

- no worker waits for ever, and no message is left over: every send has its receive, in the same order;
- every micro-batch goes forward and backward once through every stage, on what its neighbours made of it;
- no version of a stage's weights is read before it is made or after it is dropped, and forward and backward of a
  micro-batch read the same one (where weights are predicted: the backward the newest);
- every gradient is in exactly one update, and all stages make the same updates of the same micro-batches.

One walk is enough: a worker never chooses what to do next (`core.schedules.clock`), so if there is a bad end, every
order of events leads to it. The error is the shortest story of how it comes to that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from paceline.core.schedules import (
    ALL_REDUCE,
    BACKWARD,
    FORWARD,
    INPUTS,
    SEND_BACK,
    SEND_ON,
    TAKE_BACK,
    TAKE_ON,
    UPDATE,
    WEIGHTS,
    Table,
    Work,
)
from paceline.core.schedules.clock import Channel, Walk, channel_of, clocked, sends, takes
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
    walk = Walk(table)
    for worker, work in walk:
        checker.see(worker, work)
    if walk.blocked:
        raise PlanError(_stuck(table, walk))
    checker.end()
    figures = checker.figures
    figures.ticks, figures.bubble = ticks_of(table)
    return figures


def ticks_of(table: Table) -> tuple[int, float]:
    """Return how many ticks the table takes, and the share in which workers idle. Messages and updates take none."""

    def ticks(worker: int, work: Work) -> float:
        return 0.0 if work.what in (UPDATE, ALL_REDUCE) or sends(work) else 1.0

    spans = [(timed.start, timed.end) for timed in clocked(table, ticks)]
    last = max((end for _, end in spans), default=0.0)
    busy = sum(end - start for start, end in spans)
    return int(last), 1 - busy / (last * table.workers) if last else 0.0


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
    """Checks each piece of work as the walk yields it."""

    def __init__(self, table: Table) -> None:
        self.table, self.figures = table, Figures(versions=list(table.versions))
        self.stages = [_Stage() for _ in table.stage_to_worker]
        self.in_flight: dict[Channel, deque[int]] = defaultdict(deque)
        #: What has arrived and was not used yet: (way, stage that needs it, micro-batch).
        self.arrived: set[tuple[str, int, int]] = set()
        self.past: list[tuple[int, Work]] = []

    def see(self, worker: int, work: Work) -> None:
        if not 0 <= work.stage < self.table.stages or self.table.stage_to_worker[work.stage] != worker:
            raise self.fault([], f"worker {worker} does {work}, which it does not hold")
        self.past.append((worker, work))
        if sends(work):
            self.send(work)
        elif takes(work):
            self.take(work)
        elif work.what == ALL_REDUCE:
            self.all_reduce(worker, work)
        else:
            self.figures.works += 1
            {FORWARD: self.forward, BACKWARD: self.backward, INPUTS: self.backward, WEIGHTS: self.weights,
             UPDATE: self.update}[work.what](work)  # fmt: skip

    # --- messages ---------------------------------------------------------------------------------------------------

    def send(self, work: Work) -> None:
        stage = self.stages[work.stage]
        made = stage.forwards if work.what == SEND_ON else stage.inputs
        if work.micro not in made:
            raise self.fault([], f"{_who(self.table, work)} sends what it has not made: {_message(work)}")
        self.figures.messages += 1
        self.in_flight[channel_of(work)].append(work.micro)

    def take(self, work: Work) -> None:
        found = self.in_flight[channel_of(work)].popleft()
        if found != work.micro:
            sent = Work(channel_of(work)[0], found, SEND_ON if work.what == TAKE_ON else SEND_BACK)
            raise self.fault([sent, work], f"it wants micro-batch {work.micro}, and {found} is what comes next")
        self.arrive(work.what, work.stage, work.micro)

    def arrive(self, way: str, stage: int, micro: int) -> None:
        self.arrived.add((way, stage, micro))

    def need(self, way: str, work: Work, neighbour: int) -> None:
        if not 0 <= neighbour < self.table.stages:
            return
        if (way, work.stage, work.micro) not in self.arrived:
            what = "activations" if way == TAKE_ON else "gradients"
            raise self.fault([work], f"the {what} of micro-batch {work.micro} from stage {neighbour} have not arrived")
        self.arrived.remove((way, work.stage, work.micro))

    def all_reduce(self, worker: int, work: Work) -> None:
        for number, stage in enumerate(self.stages):
            if self.table.stage_to_worker[number] == worker and stage.weights != set(stage.forwards):
                raise self.fault([work], f"not all gradients of stage {number} are made")

    # --- computing --------------------------------------------------------------------------------------------------

    def forward(self, work: Work) -> None:
        stage = self.stages[work.stage]
        if work.micro in stage.forwards:
            raise self.fault([work, work], f"micro-batch {work.micro} goes forward through stage {work.stage} twice")
        self.need(TAKE_ON, work, work.stage - 1)
        self.read(work)
        stage.forwards[work.micro] = work.version
        stage.most = max(stage.most, len(stage.forwards) - len(stage.weights))
        self.hand_over(TAKE_ON, work, work.stage + 1)

    def backward(self, work: Work) -> None:
        stage = self.stages[work.stage]
        if work.micro not in stage.forwards:
            raise self.fault([work], "it goes backward before it has gone forward")
        if work.micro in stage.inputs:
            raise self.fault([work, work], f"micro-batch {work.micro} goes backward through stage {work.stage} twice")
        self.need(TAKE_BACK, work, work.stage + 1)
        self.read(work)
        self.same_version(work)
        stage.inputs.add(work.micro)
        if work.what == BACKWARD:
            stage.weights.add(work.micro)
            stage.waiting.append(work.micro)
        self.hand_over(TAKE_BACK, work, work.stage - 1)

    def weights(self, work: Work) -> None:
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
        if max(stage.waiting) != work.micro:
            raise self.fault([work], f"the last gradient in it is that of micro-batch {max(stage.waiting)}")
        stage.updates.append(frozenset(stage.waiting))
        first = min(stage.forwards[micro] for micro in stage.waiting)
        self.figures.staleness = max(self.figures.staleness, stage.newest - first)
        stage.waiting, stage.newest = [], work.version

    def hand_over(self, way: str, work: Work, neighbour: int) -> None:
        """Pass a result to a neighbouring stage of the same worker."""
        stage_to_worker = self.table.stage_to_worker
        if 0 <= neighbour < len(stage_to_worker) and stage_to_worker[neighbour] == stage_to_worker[work.stage]:
            self.arrive(way, neighbour, work.micro)

    # --- versions ---------------------------------------------------------------------------------------------------

    def read(self, work: Work) -> None:
        stage, keeps = self.stages[work.stage], self.table.versions[work.stage]
        if work.version > stage.newest:
            last = self.made(work.stage, stage.newest)
            raise self.fault([*last, work], f"it reads version {work.version}, which is not made yet")
        if work.version <= stage.newest - keeps:
            used = [Work(work.stage, work.micro, FORWARD, stage.forwards[work.micro])] if work.what != FORWARD else []
            dropping = self.made(work.stage, work.version + keeps)
            held = f"{keeps} version{'s' * (keeps > 1)}"
            moral = f"it reads version {work.version}, which is dropped: stage {work.stage} holds {held} of its weights"
            raise self.fault([*used, *dropping, work], moral)

    def same_version(self, work: Work) -> None:
        stage = self.stages[work.stage]
        read = stage.forwards[work.micro]
        wanted = stage.newest if self.table.predicts else read
        if work.version != wanted:
            forward = Work(work.stage, work.micro, FORWARD, read)
            why = f"the newest is {wanted}" if self.table.predicts else f"the forward read {read}"
            raise self.fault([forward, work], f"the backward reads version {work.version}, and {why}")

    def made(self, stage: int, version: int) -> list[Work]:
        return [work for _, work in self.past if (work.what, work.stage, work.version) == (UPDATE, stage, version)]

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        for (source, target), left in self.in_flight.items():
            if left:
                way = SEND_ON if target > source else SEND_BACK
                raise self.fault([Work(source, left[0], way)], f"stage {target} never takes it")
        wanted = set(range(self.table.micro_batches))
        for number, stage in enumerate(self.stages):
            for micros, what in ((set(stage.forwards), "forward"), (stage.weights, "backward")):
                if micros != wanted:
                    lost = min(wanted ^ micros)
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

    def fault(self, scenes: list[Work], moral: str) -> PlanError:
        steps = [Scene(_who(self.table, work), _does(work)) for work in scenes]
        return PlanError(format_story(f"The table of {self.table.name} is wrong:", steps, moral))


def _stuck(table: Table, walk: Walk) -> str:
    """Return the story of a deadlock, where no worker can continue."""
    waits = []
    for worker, work in walk.blocked.items():
        at = walk.positions[worker]
        did = _does(walk.programs[worker][at - 1]) if at else "starts"
        if work.what == ALL_REDUCE:
            missing = walk.began.index(min(walk.began))
            waits.append(Wait(f"worker {worker}", did, "join the all-reduce", f"worker {missing}"))
            continue
        source, target = channel_of(work)
        other = table.stage_to_worker[source if takes(work) else target]
        wants = (
            f"send {_message(work)}" if takes(work) else f"take a message: {walk.slots} from stage {source} are ready"
        )
        waits.append(Wait(f"worker {worker}", did, wants, f"worker {other}"))
    return format_waits(f"The table of {table.name} gets stuck:", waits)


def _who(table: Table, work: Work) -> str:
    return f"worker {table.stage_to_worker[work.stage]}"


def _message(work: Work) -> str:
    what = "activations" if work.what in (SEND_ON, TAKE_ON) else "gradients"
    source = work.stage if sends(work) else channel_of(work)[0]
    return f"the {what} of micro-batch {work.micro} from stage {source}"


def _does(work: Work) -> str:
    if sends(work) or takes(work):
        return f"{'sends' if sends(work) else 'takes'} {_message(work)}"
    stage, reading = f"stage {work.stage}", f"for micro-batch {work.micro}, reading version {work.version}"
    return {
        FORWARD: f"takes micro-batch {work.micro} forward through {stage}, reading version {work.version}",
        BACKWARD: f"takes micro-batch {work.micro} backward through {stage}, reading version {work.version}",
        INPUTS: f"makes the gradients of {stage}'s inputs {reading}",
        WEIGHTS: f"makes the gradients of {stage}'s weights {reading}",
        UPDATE: f"updates {stage}: version {work.version}",
        ALL_REDUCE: "joins the all-reduce",
    }[work.what]
