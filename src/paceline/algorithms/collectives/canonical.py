"""Canonical all-reduce: partial sums take the routes of another collective, and are added in the order of one tree.

Every worker holds a run of neighbouring chunks, summed to the largest subtrees of the chunk tree (`chunk_tree`).
Where the other collective sends a worker's sum of a segment, this one sends the sums of all subtrees that the worker
holds of it, one after another; a sum that arrives is added to its other half, or lies beside the others until then.
So every segment is the same sum of the same halves, no matter which worker held a chunk, and which routes sums took:
the bits depend on the chunks alone. Three workers in a ring with two of six chunks each, segment a:

    step        worker 0         worker 1                         worker 2
    reduce 0    sends 0 and 1    adds its 2 and 3: has 0 to 3
    reduce 1                     sends 0 to 3                     adds its 4 and 5: has the sum

Partial sums lie in lanes: `lanes` vectors of one length, of which the first ends with the result. Where every sum on
its way is one subtree there is one lane, and the table is the other collective's own, step by step: with workers and
chunks that are powers of two, equal shares, and halving and doubling (whose workers hold chunks in the order in which
they meet), or a tree. Otherwise more than one partial sum travels: around a ring worker w sends in step t of the first
half as many segments as the chunks of workers w - t to w have subtrees, and one in each step of the second half. There
is no closed form for the time of those tables; it is that of their rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from paceline.algorithms.collectives import SIT_OUT, Collective, Part, Round, Step, table_rounds, table_seconds
from paceline.algorithms.collectives.halving_doubling import HalvingDoubling, meeting_order
from paceline.algorithms.collectives.rings import Hierarchical
from paceline.errors import PlanError

FINEST = 16  # steps in which speeds are distinguished, from that of the slowest worker
SLACK = Fraction(1, 8)  # of the time of the best division, for one with fewer subtrees: speeds are no more exact
WORTH_MOVING = 0.9  # of the longest time that a worker takes: shares that gain less stay as they are


@dataclass(frozen=True)
class Canonical:
    #: Whose routes the partial sums take.
    routes: Collective
    #: The leaves of the tree.
    chunks: int
    #: Relative sizes of the workers' shares; empty where they are equal.
    sizes: tuple[int, ...] = ()

    def runs(self, workers: int) -> list[ChunkRange]:
        """Return the chunks of each worker."""
        return _runs(self, workers)

    def _divided(self, workers: int) -> list[ChunkRange]:
        if workers > self.chunks:
            raise PlanError(
                f"canonical={self.chunks} cuts a batch into {self.chunks} chunks, fewer than there are workers, "
                f"{workers}; give at least canonical={workers}, or fewer workers"
            )
        order = meeting_order(workers) if isinstance(self.routes, HalvingDoubling) else range(workers)
        sizes = self.sizes or (1,) * workers
        runs = dict(zip(order, divide(self.chunks, tuple(sizes[worker] for worker in order)), strict=True))
        return [runs[worker] for worker in range(workers)]

    def partial_sums(self, worker: int, workers: int) -> list[ChunkRange]:
        """Return the subtrees that a worker sums before the exchange, by lane."""
        return subtrees(self.runs(workers)[worker], self.chunks)

    def segments(self, workers: int) -> int:
        return self.routes.segments(workers)

    def lanes(self, workers: int) -> int:
        """Return how many partial sums of a segment a worker holds at once, at most."""
        return _table(self, workers).lanes

    def steps(self, worker: int, workers: int) -> Iterator[Step]:
        return (row[worker] for row in _table(self, workers).rows)

    def rounds(self, workers: int) -> Iterator[Round]:
        return self.routes.rounds(workers) if self.lanes(workers) == 1 else table_rounds(self, workers)

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        if self.lanes(workers) == 1:
            return self.routes.seconds(workers, size, latency, bandwidth)
        return table_seconds(self, workers, size, latency, bandwidth)

    def by_pace(self, seconds: Sequence[float]) -> Canonical:
        """Return the same sum with shares that fit the seconds of a chunk at each worker, where that is much faster."""
        if not all(math.isfinite(each) and each > 0 for each in seconds):
            return self
        workers, slowest = len(seconds), max(seconds)
        following = replace(self, sizes=tuple(round(FINEST * slowest / each) for each in seconds))

        def longest(shares: Canonical) -> float:
            return max((stop - first) * each for (first, stop), each in zip(shares.runs(workers), seconds, strict=True))

        fits = lanes_of(following, workers) <= spare_lanes(self.chunks)
        return following if fits and longest(following) < WORTH_MOVING * longest(self) else self

    def fitting(self, workers: int) -> Canonical:
        """Return the same sum for another number of workers, with equal shares where it had others."""
        routes = self.routes.fitting(workers) if isinstance(self.routes, Hierarchical) else self.routes
        return replace(self, routes=routes, sizes=self.sizes if len(self.sizes) == workers else ())


@lru_cache(maxsize=64)
def _runs(canonical: Canonical, workers: int) -> list[ChunkRange]:
    return canonical._divided(workers)


def lanes_of(collective: Collective | None, workers: int) -> int:
    """Return the vectors that a worker has for partial sums: one, where everything is added as it comes."""
    return collective.lanes(workers) if isinstance(collective, Canonical) else 1


def spare_lanes(chunks: int) -> int:
    """Return the lanes of a worker whose share may change: enough for almost all shares."""
    return chunks.bit_length() + 1


class _ExchangeTable(NamedTuple):
    rows: list[list[Step]]
    lanes: int


@lru_cache(maxsize=64)
def _table(canonical: Canonical, workers: int) -> _ExchangeTable:
    """Walk the other collective's table with the subtrees that lie in each worker's lanes."""
    walk = _Walk(canonical, workers)
    for row in zip(*(canonical.routes.steps(worker, workers) for worker in range(workers)), strict=True):
        walk.row(row)
    return _ExchangeTable(walk.rows, walk.lanes)


class _Message(NamedTuple):
    """One lane of neighbouring segments, on its way from one worker to another."""

    source: int
    lane: int
    tree: ChunkRange
    first: int
    stop: int


class _Walk:
    """Where the partial sums are, as the table goes on."""

    def __init__(self, canonical: Canonical, workers: int) -> None:
        self.chunks, self.segments = canonical.chunks, canonical.segments(workers)
        sums = [dict(enumerate(canonical.partial_sums(worker, workers))) for worker in range(workers)]
        #: By worker and segment: the subtree in each lane.
        self.lying = [[dict(each) for _ in range(self.segments)] for each in sums]
        self.rows: list[list[Step]] = []
        self.lanes = max(map(len, sums))

    def row(self, row: Sequence[Step]) -> None:
        """Make the steps of one row of the other collective's table."""
        messages = [self._messages(worker, step) for worker, step in enumerate(row)]
        for worker, step in enumerate(row):
            if step.send is not None and row[step.send.other].reduce:
                for lying in self.lying[worker][step.send.first : step.send.stop]:
                    lying.clear()  # from here on the sum is made elsewhere
            if step.receive is not None and not step.reduce:
                for lying in self.lying[worker][step.receive.first : step.receive.stop]:
                    lying.clear()
        for number in range(max(map(len, messages))):
            arriving = [each[number] if number < len(each) else None for each in messages]
            self._exchange(arriving)
            while any(joins := [self._join(worker, each) for worker, each in enumerate(arriving)]):
                self.rows.append([step or SIT_OUT for step in joins])

    def _messages(self, worker: int, step: Step) -> list[_Message]:
        """Return what a worker takes in a step: neighbouring segments at once, as long as both ends hold the same."""
        if step.receive is None:
            return []
        source, first, stop = step.receive
        theirs, mine, messages = self.lying[source], self.lying[worker], list[_Message]()
        cuts = [
            segment
            for segment in range(first, stop)
            if segment == first or (theirs[segment], mine[segment]) != (theirs[segment - 1], mine[segment - 1])
        ]
        for begin, end in zip(cuts, [*cuts[1:], stop], strict=True):
            messages += [_Message(source, lane, tree, begin, end) for lane, tree in sorted(theirs[begin].items())]
        return messages

    def _exchange(self, arriving: Sequence[_Message | None]) -> None:
        """Add a row in which each worker takes its message, and adds it to the other half or puts it into a lane."""
        sends: list[Part | None] = [None] * len(arriving)
        steps = [SIT_OUT] * len(arriving)
        for worker, message in enumerate(arriving):
            if message is None:
                continue
            source, from_lane, tree, first, stop = message
            lying = self.lying[worker][first]
            lane, joined = next(
                ((n, w) for n, each in lying.items() if (w := join(each, tree, self.chunks))), (-1, tree)
            )
            reduce = lane >= 0
            lane = lane if reduce else min(set(range(len(lying) + 1)) - lying.keys())
            for each in self.lying[worker][first:stop]:
                each[lane] = joined
            self.lanes = max(self.lanes, lane + 1)
            sends[source] = self._part(worker, from_lane, first, stop)
            at = None if lane == from_lane else lane * self.segments + first
            steps[worker] = Step(None, self._part(source, from_lane, first, stop), reduce, at)
        self.rows.append([step._replace(send=send) for step, send in zip(steps, sends, strict=True)])

    def _join(self, worker: int, message: _Message | None) -> Step | None:
        """Add two halves that a worker has in its lanes now, if there are any."""
        if message is None:
            return None
        lying = self.lying[worker][message.first]
        for lane, other in ((a, b) for a in sorted(lying) for b in sorted(lying) if a < b):
            if joined := join(lying[lane], lying[other], self.chunks):
                for each in self.lying[worker][message.first : message.stop]:
                    each[lane] = joined
                    del each[other]
                part = self._part(worker, other, message.first, message.stop)
                return Step(None, part, True, lane * self.segments + message.first)
        return None

    def _part(self, other: int, lane: int, first: int, stop: int) -> Part:
        return Part(other, lane * self.segments + first, lane * self.segments + stop)


# The chunk tree: the one order in which the chunks of a batch are summed, no matter which worker holds a chunk.
# Neighbours are added first, then pairs of neighbours, and so on; what has no neighbour waits for the next level:
#
#     8 chunks   ((0+1)+(2+3)) + ((4+5)+(6+7))
#     6 chunks   ((0+1)+(2+3)) + (4+5)
#     5 chunks   ((0+1)+(2+3)) + 4
#
# Floating-point addition is commutative and not associative: a sum has the same bits whenever it is made of the same
# halves. So a worker with neighbouring chunks sums the whole subtrees among them, and workers exchange the sums of
# subtrees. Demmel and Nguyen, "Parallel reproducible summation", IEEE Trans. Comput. 2015, reach the same end for any
# order, with wider accumulators instead of a fixed tree.


class ChunkRange(NamedTuple):
    """Neighbouring chunks; a subtree is the run of its leaves."""

    first: int
    stop: int


def join(one: ChunkRange, other: ChunkRange, chunks: int) -> ChunkRange | None:
    """Return the subtree that these two are the halves of; None if there is none."""
    left, right = sorted((one, other))
    size = left.stop - left.first
    tree = ChunkRange(left.first, min(left.first + 2 * size, chunks))
    halves = not size & (size - 1) and not left.first % (2 * size)
    return tree if halves and left.stop == right.first and right.stop == tree.stop else None


def subtrees(run: ChunkRange, chunks: int) -> list[ChunkRange]:
    """Return the largest subtrees that a run is made of, from its first chunk to its last."""
    trees, first = list[ChunkRange](), run.first
    while first < run.stop:
        size = 1
        while not first % (2 * size) and min(first + 2 * size, chunks) <= run.stop and first + size < chunks:
            size *= 2
        trees.append(ChunkRange(first, min(first + size, chunks)))
        first = trees[-1].stop
    return trees


def joins_of(run: ChunkRange, chunks: int) -> list[int]:
    """Return how many pairs of partial sums are joined after each chunk of a run, taken one after another."""
    joins, trees = list[int](), list[ChunkRange]()
    for chunk in range(*run):
        trees.append(ChunkRange(chunk, chunk + 1))
        joins.append(0)
        while len(trees) > 1 and (parent := join(trees[-2], trees[-1], chunks)):
            trees[-2:] = [parent]
            joins[-1] += 1
    return joins


@lru_cache(maxsize=256)
def divide(chunks: int, speeds: Sequence[int]) -> list[ChunkRange]:
    """Divide the chunks into a run for each of these speeds.

    The slowest run takes hardly more time than any division allows, with at least one chunk for each; among such
    divisions it is one with the fewest subtrees, as each is a partial sum that travels.
    """
    most = _most(chunks, speeds)
    #: By the chunks that are divided so far: the fewest subtrees, and the cuts that leave them.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for number, limit in enumerate(most):
        remaining = len(most) - number - 1
        ahead: dict[int, tuple[int, tuple[int, ...]]] = {}
        for first, (count, cuts) in best.items():
            for stop in range(first + 1, min(first + limit, chunks - remaining) + 1):
                option = count + len(subtrees(ChunkRange(first, stop), chunks)), (*cuts, stop)
                ahead[stop] = min(ahead.get(stop, option), option)
        best = ahead
    cuts = best[chunks][1]
    return [ChunkRange(first, stop) for first, stop in pairwise(cuts)]


def _most(chunks: int, speeds: Sequence[int]) -> list[int]:
    """Return how many chunks each may take so that none takes much longer than it must."""
    times = sorted({Fraction(count, speed) for speed in speeds for count in range(1, chunks + 1)})
    for time in times:
        most = [int(time * speed) for speed in speeds]
        if min(most) >= 1 and sum(most) >= chunks:
            return [int((1 + SLACK) * time * speed) for speed in speeds]
    raise ValueError(f"{chunks} chunks cannot be divided into {len(speeds)} runs")
