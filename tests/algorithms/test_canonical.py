"""Canonical sums: whoever holds which chunks, every addition is that of the two halves of a subtree."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from paceline.algorithms.cluster.shares import Membership
from paceline.algorithms.collectives import SIT_OUT, Collective, Part, Step, table_seconds
from paceline.algorithms.collectives.canonical import Canonical, ChunkRange, divide, join, subtrees
from paceline.algorithms.collectives.halving_doubling import HalvingDoubling
from paceline.algorithms.collectives.proof import has_its_rounds, prove
from paceline.algorithms.collectives.rings import Hierarchical, Ring
from paceline.algorithms.collectives.trees import Central, Tree
from paceline.errors import PlanError
from paceline.runtime.engines.arithmetic.common import execute

ROUTES = [Ring(), Tree(), HalvingDoubling(), Hierarchical(2), Central()]


def by_tree(values: list[torch.Tensor]) -> torch.Tensor:
    """Add neighbours, then neighbours of what comes out."""
    while len(values) > 1:
        values = [sum(values[n + 1 : n + 2], start=values[n]) for n in range(0, len(values), 2)]
    return values[0]


def test_subtrees_are_the_largest_of_a_run() -> None:
    assert subtrees(ChunkRange(3, 8), 8) == [ChunkRange(3, 4), ChunkRange(4, 8)]
    assert subtrees(ChunkRange(0, 6), 8) == [ChunkRange(0, 4), ChunkRange(4, 6)]
    assert subtrees(ChunkRange(0, 6), 6) == [ChunkRange(0, 6)]
    assert subtrees(ChunkRange(4, 5), 5) == [ChunkRange(4, 5)]
    assert join(ChunkRange(4, 5), ChunkRange(0, 4), 5) == ChunkRange(0, 5)
    assert join(ChunkRange(1, 2), ChunkRange(2, 3), 8) is None


@pytest.mark.parametrize("chunks", range(1, 18))
def test_subtrees_of_any_run_come_together_to_it(chunks: int) -> None:
    for first in range(chunks):
        for stop in range(first + 1, chunks + 1):
            trees = subtrees(ChunkRange(first, stop), chunks)
            assert [n for tree in trees for n in range(*tree)] == list(range(first, stop))
            assert not any(join(one, other, chunks) for one in trees for other in trees if one != other)


@pytest.mark.parametrize(
    ("chunks", "speeds", "shares"),
    [
        (8, (1, 1), (4, 4)),
        (8, (3, 1), (6, 2)),
        (8, (5, 1), (7, 1)),
        (8, (1, 1, 1), (2, 3, 3)),
        (12, (2, 1, 1), (6, 3, 3)),
    ],
)
def test_chunks_are_divided_by_speed_into_few_subtrees(
    chunks: int, speeds: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    found = tuple(stop - first for first, stop in divide(chunks, speeds))
    longest = [max(n / s for n, s in zip(each, speeds, strict=True)) for each in (found, shares)]
    assert longest[0] == longest[1]
    assert sum(found) == chunks
    assert min(found) >= 1


def worlds(routes: Collective, most: int) -> list[int]:
    return [n for n in range(1, most + 1) if not isinstance(routes, Hierarchical) or n % routes.groups == 0]


@pytest.mark.parametrize("routes", ROUTES, ids=str)
@pytest.mark.parametrize("chunks", [8, 12, pytest.param(33, marks=pytest.mark.soak)])
def test_every_table_adds_in_the_order_of_the_tree_and_takes_its_closed_form(routes: Collective, chunks: int) -> None:
    for workers in worlds(routes, min(chunks, 16)):
        table = Canonical(routes, chunks)
        prove(table, workers)
        assert has_its_rounds(table, workers)
        closed, walked = table.seconds(workers, 1e6, 1e-4, 1e9), table_seconds(table, workers, 1e6, 1e-4, 1e9)
        assert closed == pytest.approx(walked, rel=1e-12)


@pytest.mark.parametrize("routes", ROUTES, ids=str)
def test_any_shares_of_any_workers_give_the_bits_of_the_tree(routes: Collective) -> None:
    rng = random.Random(1)
    for chunks in (1, 5, 8, 11):
        values = [torch.randn(300, generator=torch.Generator().manual_seed(chunk)) for chunk in range(chunks)]
        expected = by_tree(values)
        for workers in worlds(routes, min(chunks, 7)):
            sizes = tuple(rng.randint(1, 4) for _ in range(workers))
            for table in (Canonical(routes, chunks), Canonical(routes, chunks, sizes)):
                prove(table, workers)
                vectors = [torch.zeros(304 * table.lanes(workers)) for _ in range(workers)]
                for worker, vector in enumerate(vectors):
                    for lane, (first, stop) in enumerate(table.partial_sums(worker, workers)):
                        whole = by_tree_from(values, first, stop)
                        vector[lane * 304 : lane * 304 + 300] = whole
                execute(table, vectors, length=300)
                assert all(torch.equal(vector[:300], expected) for vector in vectors), (table, workers)


def by_tree_from(values: list[torch.Tensor], first: int, stop: int) -> torch.Tensor:
    return by_tree(values[first:stop])


@pytest.mark.parametrize("routes", [HalvingDoubling(), Tree(), Hierarchical(2), Central()], ids=str)
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_powers_of_two_cost_what_the_routes_cost(routes: Collective, workers: int) -> None:
    def moves(table: Collective) -> list[tuple[Part | None, Part | None]]:
        return [(s.send, s.receive) for n in range(workers) for s in table.steps(n, workers) if s != SIT_OUT]

    if isinstance(routes, HalvingDoubling | Tree):
        assert moves(Canonical(routes, 8)) == moves(routes)
        assert Canonical(routes, 8).seconds(workers, 1e6, 1e-4, 1e9) == routes.seconds(workers, 1e6, 1e-4, 1e9)


def test_shares_follow_paces_where_that_pays() -> None:
    equal = Canonical(Ring(), 8)
    assert equal.by_pace([1.0, 1.05]) is equal
    slow = equal.by_pace([1.0, 3.0])
    assert [stop - first for first, stop in slow.runs(2)] == [6, 2]
    assert slow.by_pace([1.0, 3.0]) is slow
    assert [stop - first for first, stop in slow.by_pace([1.0, 1.0]).runs(2)] == [4, 4]
    assert [stop - first for first, stop in equal.by_pace([1.0, 50.0]).runs(2)] == [7, 1]
    assert equal.by_pace([1.0, 0.0]) is equal


def test_who_shares_what_is_known_of_every_update() -> None:
    equal = Canonical(Ring(), 8)
    shares = Membership(2, equal)
    shares.moved(5, equal.by_pace([1.0, 3.0]))
    assert [shares.parts_of(1, update) for update in (4, 5)] == [[4, 5, 6, 7], [6, 7]]
    shares.regrouped(9, (1,))
    assert shares.parts_of(1, 9) == list(range(8))
    assert shares.parts_of(0, 9) == []


def test_more_workers_than_chunks_are_refused() -> None:
    with pytest.raises(PlanError, match="4 chunks, fewer than there are workers, 5"):
        prove(Canonical(Ring(), 4), 5)


Rows = list[list[Step]]


class Altered(Canonical):
    """A table in which something was changed."""

    def steps(self, worker, workers):  # type: ignore[no-untyped-def]
        rows = [[*row] for row in zip(*(super(Altered, self).steps(w, workers) for w in range(workers)), strict=True)]
        ALTER[0](rows, self.segments(workers))
        return iter([row[worker] for row in rows])

    def partial_sums(self, worker, workers):  # type: ignore[no-untyped-def]
        return START[0](super().partial_sums(worker, workers), worker)


ALTER: list[Callable[[Rows, int], object]] = [lambda rows, segments: None]
START: list[Callable[[list[ChunkRange], int], list[ChunkRange]]] = [lambda trees, worker: trees]


def locals_of(rows: Rows) -> list[tuple[int, int]]:
    """Where two partial sums that a worker holds are added up."""
    return [(n, w) for n, row in enumerate(rows) for w, s in enumerate(row) if s.receive and s.receive.other == w]


def adding(rows: Rows) -> list[tuple[int, int]]:
    """Where a partial sum of another worker is added."""
    return [
        (n, w)
        for n, row in enumerate(rows)
        for w, s in enumerate(row)
        if s.receive and s.reduce and s.receive.other != w
    ]


def kept(rows: Rows) -> list[tuple[int, int]]:
    """Where a partial sum of another worker is put beside the others."""
    last = max(n for n, _ in adding(rows))
    return [(n, w) for n, row in enumerate(rows[:last]) for w, s in enumerate(row) if s.receive and not s.reduce]


def alter(rows: Rows, place: tuple[int, int], **changes: object) -> None:
    number, worker = place
    rows[number][worker] = rows[number][worker]._replace(**changes)


def add_at_once(rows: Rows, segments: int) -> None:
    alter(rows, kept(rows)[0], reduce=True, at=rows[kept(rows)[0][0]][kept(rows)[0][1]].receive.first % segments)  # type: ignore[union-attr]


def other_lane(rows: Rows, segments: int) -> None:
    number, worker = kept(rows)[0]
    step = rows[number][worker]
    assert step.receive
    alter(rows, (number, worker), at=step.written.first % segments)


def later(rows: Rows, segments: int) -> None:
    number, worker = locals_of(rows)[0]
    step, rows[number][worker] = rows[number][worker], SIT_OUT
    rows.append([step if w == worker else SIT_OUT for w in range(len(rows[0]))])


def never(rows: Rows, segments: int) -> None:
    number, worker = locals_of(rows)[0]
    rows[number][worker] = SIT_OUT


def twice(rows: Rows, segments: int) -> None:
    number, _ = adding(rows)[0]
    rows.insert(number + 1, list(rows[number]))


def replaced(rows: Rows, segments: int) -> None:
    alter(rows, adding(rows)[0], reduce=False)


def into_another_segment(rows: Rows, segments: int) -> None:
    number, worker = adding(rows)[0]
    at = rows[number][worker].written.first
    alter(rows, (number, worker), at=at - at % segments + (at + 1) % segments)


def lost(rows: Rows, segments: int) -> None:
    number, worker = kept(rows)[0]
    source = rows[number][worker].receive.other  # type: ignore[union-attr]
    alter(rows, (number, worker), receive=None)
    alter(rows, (number, source), send=None)


def swapped(rows: Rows, segments: int) -> None:
    number = locals_of(rows)[0][0]
    rows[number - 1], rows[number] = rows[number], rows[number - 1]


def shifted(trees: list[ChunkRange], worker: int) -> list[ChunkRange]:
    return [ChunkRange(first + 1, stop + 1) for first, stop in trees] if worker == 1 else trees


def left_to_right(trees: list[ChunkRange], worker: int) -> list[ChunkRange]:
    """A worker adds all of its run up, although it is no subtree."""
    return [ChunkRange(trees[0].first, trees[-1].stop)]


@pytest.mark.parametrize(
    "fault",
    [
        add_at_once,
        other_lane,
        later,
        never,
        twice,
        replaced,
        into_another_segment,
        lost,
        swapped,
        shifted,
        left_to_right,
    ],
    ids=lambda fault: fault.__name__,
)
def test_a_fault_in_the_order_of_additions_is_refused(
    fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Altered(Ring(), 8)
    prove(table, 3)
    monkeypatch.setitem(globals(), "START" if fault in (shifted, left_to_right) else "ALTER", [fault])
    with pytest.raises(PlanError):
        prove(Altered(Ring(), 8), 3)
