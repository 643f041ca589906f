"""Schedules: their tables are the literature's, their bubbles its formulas; and what the proof lets pass runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from paceline.algorithms.schedules import (
    BACKWARD,
    FORWARD,
    UPDATE,
    WEIGHTS,
    Back,
    Schedule,
    Table,
    Weighed,
    Work,
    peaks,
    table_of,
)
from paceline.algorithms.schedules.clock import Place, Walk, ticked
from paceline.algorithms.schedules.proof import prove_table
from paceline.algorithms.schedules.with_flush import Gpipe, Interleaved, Layers, OneFOneB, ZeroBubble
from paceline.algorithms.schedules.without_flush import Pipedream, Spectrain
from paceline.algorithms.schedules.worker import Compute, Effect, Update, follow
from paceline.algorithms.splits import balanced
from paceline.errors import PlanError


def lines(schedule: Schedule, workers: int, counts: list[int]) -> list[str]:
    """The table as its docstring draws it."""
    stage_to_worker, found = schedule.layout(workers).stage_to_worker, ticked(table_of(schedule, workers, counts))
    cells = [[""] * (1 + max(task.tick for task in found)) for _ in range(workers)]
    for task in found:
        stage = f".{task.stage}" if len(stage_to_worker) > workers else ""
        version = f"v{task.version}" if task.version else ""
        text = "U" if task.what == UPDATE else f"{task.what}{task.micro}{stage}{version}"
        cells[stage_to_worker[task.stage]][task.tick] += text
    return [" ".join(cell or "." for cell in row) for row in cells]


LITERAL: list[tuple[Schedule, int, list[int], list[str]]] = [
    (Gpipe(), 3, [4], [
        "F0 F1 F2 F3 . . . . B3 B2 B1 B0U",
        ". F0 F1 F2 F3 . . B3 B2 B1 B0U .",
        ". . F0 F1 F2 F3 B3 B2 B1 B0U . .",
    ]),
    (OneFOneB(), 3, [4], [
        "F0 F1 F2 . . B0 F3 B1 . B2 . B3U",
        ". F0 F1 . B0 F2 B1 F3 B2 . B3U .",
        ". . F0 B0 F1 B1 F2 B2 F3 B3U . .",
    ]),
    (ZeroBubble(), 3, [4], [
        "F0 F1 F2 . . I0 W0 F3 I1 W1 I2 W2 I3 W3U",
        ". F0 F1 . I0 F2 I1 W0 F3 I2 W1 I3 W2 W3U",
        ". . F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3U",
    ]),
    (Interleaved(2), 2, [4], [
        "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 . B2.2 . B3.2U B2.0 B3.0U",
        ". F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3U B2.1 B3.1U .",
    ]),
    (Layers((0, 1, 0, 1)), 2, [1], [
        "F0.0 . F0.2 . . B0.2U . B0.0U",
        ". F0.1 . F0.3 B0.3U . B0.1U .",
    ]),
    (Pipedream(), 2, [1, 1, 1, 1], [
        "F0 F1 . B0U F2v1 B1U F3v2 B2v1U . B3v2U",
        ". F0 B0U F1v1 B1v1U F2v2 B2v2U F3v3 B3v3U .",
    ]),
    (Pipedream(two_buffers=True), 2, [2, 2, 2], [
        "F0 F1 . B0 F2 B1U F3 B2 F4v1 B3U F5v1 B4v1 . B5v1U",
        ". F0 B0 F1 B1U F2 B2 F3 B3U F4v1 B4v1 F5v1 B5v1U .",
    ]),
    (Spectrain(), 2, [1, 1, 1, 1], [
        "F0 F1 . B0U F2v1 B1v1U F3v2 B2v2U . B3v3U",
        ". F0 B0U F1v1 B1v1U F2v2 B2v2U F3v3 B3v3U .",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "workers", "counts", "drawn"), LITERAL, ids=lambda value: type(value).__name__)
def test_the_table_is_the_one_that_is_drawn(
    schedule: Schedule, workers: int, counts: list[int], drawn: list[str]
) -> None:
    assert lines(schedule, workers, counts) == drawn


WORLDS = [(workers, micro) for workers in range(1, 7) for micro in range(1, 14)]


def bubble(schedule: Schedule, workers: int, micro: int) -> float:
    return prove_table(table_of(schedule, workers, [micro])).bubble


def test_bubbles_and_activations_are_those_of_the_literature() -> None:
    for p, m in WORLDS:
        for schedule in (Gpipe(), OneFOneB()):
            assert bubble(schedule, p, m) == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
        fill = prove_table(table_of(Gpipe(), p, [m]))
        assert fill.in_flight == [m] * p
        assert fill.messages == 2 * (p - 1) * m  # between neighbours, each way
        assert prove_table(table_of(OneFOneB(), p, [m])).in_flight == [min(m, p - s) for s in range(p)]
        zero = prove_table(table_of(ZeroBubble(), p, [m]))
        assert max(zero.in_flight) <= p
        if m >= p:
            assert zero.ticks == 3 * m + p - 1
        for v in (1, 2, 3) if m % p == 0 else ():
            assert bubble(Interleaved(v), p, m) == pytest.approx((p - 1) / (v * m + p - 1), abs=1e-12)
        assert bubble(Layers(), p, m) == pytest.approx((p - 1) / p, abs=1e-12)


def test_every_table_is_proved_also_where_nothing_divides() -> None:
    for p, m in WORLDS:
        for schedule in (Gpipe(), OneFOneB(), ZeroBubble(), Interleaved(2), Interleaved(3), Layers()):
            assert prove_table(table_of(schedule, p, [m]).agreeing()).staleness == 0
        for stale in (Pipedream(), Spectrain()):
            found = prove_table(table_of(stale, p, [1] * m))
            assert found.staleness == min(m - 1, p - 1)
        if m > p:
            assert prove_table(table_of(Pipedream(two_buffers=True), p, [m, m, m - 1, m])).staleness == 1


# --- broken tables --------------------------------------------------------------------------------------------------


class Broken(Exception):
    """Something was read that was not there, or was not what it should be."""


class Numbers:
    """Executes a table with numbers in the place of tensors, without asking whether it is right; as an engine would: it
    takes what lies in front, reads the slot that a version has in the ring, sums what comes.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rings = [[0] * keeps for keeps in table.versions]  # the version that lies in each slot
        self.newest = [0] * table.stages
        self.halves: dict[tuple[int, int], tuple[int, int]] = {}
        self.read: dict[tuple[int, int], int] = {}
        self.sums: list[list[tuple[int, int]]] = [[] for _ in table.stage_to_worker]
        self.made: list[list[tuple[tuple[int, int], ...]]] = [[] for _ in table.stage_to_worker]

    def run(self) -> list[list[tuple[tuple[int, int], ...]]]:
        programs = [follow(line, self.table.stage_to_worker) for line in self.table.lines]
        walk = Walk([programs], self.table.slots, self.answer)
        try:
            for _ in walk:
                pass
        except (KeyError, IndexError) as error:
            raise Broken from error
        if walk.blocked or any(walk.in_flight.values()) or self.halves or any(self.sums):
            raise Broken("stuck, or something is left")
        return self.made

    def answer(self, places: Sequence[Place], effect: Effect) -> object:
        if isinstance(effect, Update):
            stage = effect.work.stage
            self.newest[stage] += 1
            self.rings[stage][self.newest[stage] % len(self.rings[stage])] = self.newest[stage]
            self.made[stage].append(tuple(sorted(self.sums[stage])))
            self.sums[stage] = []
        return self.compute(effect.work, effect.message) if isinstance(effect, Compute) else None

    def compute(self, work: Work, message: object) -> object:
        """Compute: a message tells the stage, the micro-batch and the way that it comes from."""
        stage, micro, what, _ = work
        if self.table.lines[self.table.stage_to_worker[stage]].count(work) != 1:
            raise Broken("another worker has it, or it is done twice")
        if what == FORWARD:
            if stage and message != (stage - 1, micro, FORWARD):
                raise Broken(f"no activations of {micro}: {message}")
            self.read[stage, micro] = self.version(work)
            return stage, micro, FORWARD
        if what == WEIGHTS:
            self.version(work)
            self.sums[stage].append(self.halves.pop((stage, micro)))
            return None
        if stage + 1 < self.table.stages and message != (stage + 1, micro, BACKWARD):
            raise Broken(f"no gradients of {micro}: {message}")
        read = self.read.pop((stage, micro))
        if self.version(work) != (self.newest[stage] if self.table.predicts else read):
            raise Broken("another version than the forward")
        if what == BACKWARD:
            self.sums[stage].append((micro, read))
        else:
            self.halves[stage, micro] = micro, read
        return stage, micro, BACKWARD

    def version(self, work: Work) -> int:
        ring = self.rings[work.stage]
        if ring[work.version % len(ring)] != work.version:
            raise Broken("another version lies there")
        return work.version


def _swapped(table: Table, draw: random.Random) -> Table:
    worker = draw.randrange(table.workers)
    line = list(table.lines[worker])
    one, other = draw.randrange(len(line)), draw.randrange(len(line))
    line[one], line[other] = line[other], line[one]
    return _with(table, worker, line)


def _dropped(table: Table, draw: random.Random) -> Table:
    worker = draw.randrange(table.workers)
    line = list(table.lines[worker])
    line.pop(draw.randrange(len(line)))
    return _with(table, worker, line)


def _doubled(table: Table, draw: random.Random) -> Table:
    worker = draw.randrange(table.workers)
    line = list(table.lines[worker])
    line.insert(draw.randrange(len(line)), draw.choice(line))
    return _with(table, worker, line)


def _another_version(table: Table, draw: random.Random) -> Table:
    worker = draw.randrange(table.workers)
    line = list(table.lines[worker])
    place = draw.randrange(len(line))
    line[place] = line[place]._replace(version=max(0, line[place].version + draw.choice((-1, 1))))
    return _with(table, worker, line)


def _smaller_stash(table: Table, draw: random.Random) -> Table:
    return replace(table, versions=tuple(max(1, keeps - draw.randrange(2)) for keeps in table.versions))


def _fewer_slots(table: Table, draw: random.Random) -> Table:
    return replace(table, slots=1)


def _another_home(table: Table, draw: random.Random) -> Table:
    stage_to_worker = list(table.stage_to_worker)
    stage_to_worker[draw.randrange(len(stage_to_worker))] = draw.randrange(table.workers)
    return replace(table, stage_to_worker=tuple(stage_to_worker))


def _with(table: Table, worker: int, line: list[Work]) -> Table:
    return replace(table, lines=tuple(tuple(line) if n == worker else mine for n, mine in enumerate(table.lines)))


MUTATIONS: list[Callable[[Table, random.Random], Table]] = [
    _swapped,
    _dropped,
    _doubled,
    _another_version,
    _smaller_stash,
    _fewer_slots,
    _another_home,
]


def some_table(draw: random.Random) -> Table:
    workers, micro = draw.randint(1, 5), draw.randint(1, 7)
    schedules: list[Schedule] = [Gpipe(), OneFOneB(), ZeroBubble(), Interleaved(2), Layers(), Pipedream(), Spectrain()]
    schedule = draw.choice(schedules)
    counts = [micro] if schedule.span else [1] * (micro + 2)
    return table_of(schedule, workers, counts)


def runs(table: Table) -> bool:
    """Whether it comes to an end with the right numbers: every stage makes the same updates of the same micro-batches,
    each in one of them, from what its forward has read.
    """
    try:
        made = Numbers(table).run()
    except Broken:
        return False
    micros = [[sorted(micro for micro, _ in update) for update in stage] for stage in made]
    each = sorted(micro for update in micros[0] for micro in update) if micros else []
    return all(stage == micros[0] and all(stage) for stage in micros) and each == list(range(table.micro_batches))


def test_of_a_thousand_mutated_tables_those_that_are_proved_run_and_the_others_are_told_as_stories() -> None:
    draw, refused = random.Random(0), 0
    for number in range(1000):
        table = some_table(draw)
        broken = MUTATIONS[number % len(MUTATIONS)](table, draw)
        story = refusal(broken)
        if story is None:
            assert runs(broken), f"{broken} was proved, and does not run"
            continue
        refused += 1
        assert "=>" in story
        assert broken != table, f"{table} is whole, and was refused: {story}"
    assert 500 < refused < 950, refused


def refusal(table: Table) -> str | None:
    try:
        prove_table(table)
    except PlanError as story:
        return str(story)
    return None


def test_what_does_not_run_is_refused() -> None:
    """The other way round, from the side of what happens."""
    draw, bad = random.Random(1), 0
    for _ in range(300):
        table = draw.choice(MUTATIONS)(some_table(draw), draw)
        if not runs(table):
            bad += 1
            with pytest.raises(PlanError):
                prove_table(table)
    assert bad > 100, bad


def story_of(table: Table) -> str:
    with pytest.raises(PlanError) as told:
        prove_table(table)
    return str(told.value)


def test_a_missing_stash_is_told_as_who_dropped_what() -> None:
    table = table_of(Pipedream(), 3, [1] * 6)
    assert story_of(replace(table, versions=(2, 2, 1))) == (
        "The table of Pipedream is wrong:\n"
        "    1. worker 0  takes micro-batch 2 forward through stage 0, reading version 0\n"
        "    2. worker 0  updates stage 0: version 2\n"
        "    3. worker 0  takes micro-batch 2 backward through stage 0, reading version 0\n"
        "  => it reads version 0, which is dropped: stage 0 holds 2 versions of its weights"
    )


def test_a_swapped_receive_is_told_as_what_comes_next() -> None:
    table = table_of(OneFOneB(), 2, [4])
    line = list(table.lines[1])
    line[0], line[2] = line[2], line[0]
    assert story_of(_with(table, 1, line)).endswith("=> it wants micro-batch 1, and 0 is what comes next")


def test_a_cycle_of_waits_is_a_deadlock() -> None:
    table = table_of(Gpipe(), 2, [2])
    line = [work for work in table.lines[0] if work.what != UPDATE]
    first_back = next(work for work in line if work.what == BACKWARD)
    line.remove(first_back)
    line.insert(0, first_back)
    told = story_of(_with(table, 0, [*line, table.lines[0][-1]]))
    assert "deadlock: worker 0 waits for worker 1, which waits for worker 0" in told


def test_slots_bound_the_messages_that_lie_ready() -> None:
    """One sends all its forwards before it takes a gradient; the other sends them as it goes: both ways fill up."""
    forward = [Work(0, micro, FORWARD) for micro in range(6)]
    back = [Work(0, micro, BACKWARD) for micro in range(6)]
    theirs = [step for micro in range(6) for step in (Work(1, micro, FORWARD), Work(1, micro, BACKWARD))]
    lines = ((*forward, *back, Work(0, 5, UPDATE, 1)), (*theirs, Work(1, 5, UPDATE, 1)))
    table = Table((0, 1), lines, (1, 1))
    assert "deadlock: " in story_of(table)
    assert prove_table(replace(table, slots=4)).in_flight == [6, 1]


def test_an_agreement_that_somebody_misses_is_told() -> None:
    table = table_of(OneFOneB(), 2, [2]).agreeing()
    alone = _with(table, 1, [work for work in table.lines[1] if work.what != "M"])
    assert "to join the all-reduce" in story_of(alone)


# --- cuts -----------------------------------------------------------------------------------------------------------


def test_cuts_balance_the_dearest_stage() -> None:
    draw = random.Random(2)
    for _ in range(50):
        pieces = [draw.randint(1, 9) for _ in range(draw.randint(2, 8))]
        stages = draw.randint(1, len(pieces))
        found = balanced(pieces, stages, [0.0] * len(pieces))
        assert max(_costs(pieces, found)) == min(max(_costs(pieces, cuts)) for cuts in _all(len(pieces), stages))


def test_no_cut_is_made_where_none_can_be() -> None:
    closed = [0.0, float("inf"), float("inf"), 0.0]
    assert balanced([1, 1, 1, 1], 2, closed) == (3,)
    assert balanced([1, 1, 1, 1], 3, closed) == ()


def test_every_stage_has_a_piece_that_is_wanted() -> None:
    draw = random.Random(2)
    for _ in range(100):
        pieces = [draw.randint(1, 9) for _ in range(draw.randint(2, 8))]
        wanted = [draw.random() < 0.5 for _ in pieces]
        stages = draw.randint(1, len(pieces))
        able = [
            cuts
            for cuts in _all(len(pieces), stages)
            if all(any(wanted[a:b]) for a, b in pairwise([0, *cuts, len(pieces)]))
        ]
        found = balanced(pieces, stages, [0.0] * len(pieces), wanted)
        assert bool(found) <= (found in able)
        if able:
            assert max(_costs(pieces, found)) == min(max(_costs(pieces, cuts)) for cuts in able)
        else:
            assert found == ()


def _costs(pieces: list[int], cuts: tuple[int, ...]) -> list[int]:
    bounds = [0, *cuts, len(pieces)]
    return [sum(pieces[a:b]) for a, b in pairwise(bounds)]


def _all(pieces: int, stages: int) -> list[tuple[int, ...]]:
    return list(combinations(range(1, pieces), stages - 1))


# --- memory ---------------------------------------------------------------------------------------------------------


def test_memory_is_what_lies_there_at_the_worst_moment() -> None:
    one = Weighed(always=100, kept=5, forward=7, first=Back(9 + 10, 10), later=Back(9, 0), update=3)
    assert peaks(table_of(Gpipe(), 1, [4]), [one]) == [100 + 3 * 5 + 9 + 10]  # in the first backward
    assert peaks(table_of(OneFOneB(), 1, [4]), [one]) == [100 + 9 + 10]
    assert peaks(table_of(OneFOneB(), 3, [4]), [one] * 3) == [100 + 2 * 5 + 9 + 10, 100 + 5 + 9 + 10, 100 + 9 + 10]
    split = one._replace(first=Back(9 + 10, 6 + 10, 8 + 10, 10), later=Back(9, 6, 8, 0))
    assert peaks(table_of(ZeroBubble(), 2, [4]), [split] * 2) == [100 + 5 + 9 + 10, 100 + 10 + 6 + 9]
