"""Collectives: how all workers, or neighbours on a graph, exchange a vector.

A collective's table lists, for one worker, what it sends and receives, step by step, over a vector cut into as many
segments as it says. The same table is executed by the local engine, timed by the virtual one, drawn as a picture and
proved free of deadlock by `collectives.proof`. One class per published method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Part(NamedTuple):
    """Neighbouring segments, and the worker they go to or come from."""

    other: int
    first: int
    stop: int


class Step(NamedTuple):
    """One step of a worker: it offers a part to one worker and takes one from another; either may be missing.

    A segment that was offered may be read until its taker offers something later. `collectives.proof` proves that its
    owner does not change it before that.
    """

    send: Part | None
    receive: Part | None  # from the worker itself: what it has in another lane
    reduce: bool = True  # add what is received to the own segment; else replace it
    at: int | None = None  # the first own segment that it is added to or put into; None: where it lay

    @property
    def written(self) -> Part:
        """The worker's own segments that it changes by what it receives."""
        assert self.receive is not None
        other, first, stop = self.receive
        return self.receive if self.at is None else Part(other, self.at, self.at + stop - first)


SIT_OUT = Step(None, None)


class Round(NamedTuple):
    """Steps in a row that take the same time: in each of them every worker takes a part from the same other one."""

    steps: int
    sources: Sequence[int]  # the worker that each takes from; itself: from none
    sends: Sequence[int]  # segments that each worker sends


class Collective(Protocol):
    def segments(self, workers: int) -> int:
        """Return how many segments the vector is cut into."""

    def steps(self, worker: int, workers: int) -> Iterator[Step]:
        """Yield one worker's steps; every worker has the same number of them."""

    def rounds(self, workers: int) -> Iterator[Round]:
        """Yield the closed form of the table for all workers at once: who sends how much to whom, not which part.

        Bytes, waiting and the time of workers that do not arrive together follow from it in worlds of any size.
        """

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        """Return the table's time in closed form: `size` bytes, links of `latency` seconds and `bandwidth` bytes/s."""


def segment_cuts(length: int, count: int, bytes_per_number: int) -> list[int]:
    """Return where a vector is cut into segments: at cache lines, so that two workers never write the same one."""
    line = 64 // bytes_per_number
    return [length * segment // count // line * line for segment in range(count)] + [length]


def lane_stride(length: int, bytes_per_number: int) -> int:
    """Return how far apart the lanes of a vector begin: at cache lines, too."""
    line = 64 // bytes_per_number
    return -(-length // line) * line


def span_of(part: Part | None, cuts: Sequence[int], stride: int) -> tuple[int, int]:
    """Return where a part begins and ends in vectors of lanes, each cut at `cuts`, that lie `stride` numbers apart."""
    if part is None:
        return 0, 0
    lane, first = divmod(part.first, len(cuts) - 1)
    start = lane * stride + cuts[first]
    return start, start + cuts[first + part.stop - part.first] - cuts[first]


def advance(
    clocks: Sequence[float], row: Sequence[Step], piece: float, latency: float, bandwidth: float
) -> list[float]:
    """Return every worker's clock after one step, when a segment has `piece` bytes.

    Links are full duplex; a worker's outgoing link carries one part at a time, and so does its incoming one.
    """
    after = []
    for worker, step in enumerate(row):
        end = start = clocks[worker]
        if step.send is not None:
            end = start + (step.send.stop - step.send.first) * piece / bandwidth
        if step.receive is not None and step.receive.other != worker:
            begins = max(start, clocks[step.receive.other] + latency)
            end = max(end, begins + (step.receive.stop - step.receive.first) * piece / bandwidth)
        after.append(end)
    return after


def table_seconds(collective: Collective, workers: int, size: float, latency: float, bandwidth: float) -> float:
    """Return the table's time, step by step; `Collective.seconds` must equal it."""
    clocks = [0.0] * workers
    piece = size / collective.segments(workers)
    for row in zip(*(collective.steps(worker, workers) for worker in range(workers)), strict=True):
        clocks = advance(clocks, row, piece, latency, bandwidth)
    return max(clocks)


def table_rounds(collective: Collective, workers: int) -> Iterator[Round]:
    """Yield the table's steps, each as a round; `Collective.rounds` must equal them step by step."""
    for row in zip(*(collective.steps(worker, workers) for worker in range(workers)), strict=True):
        sources = [worker if step.receive is None else step.receive.other for worker, step in enumerate(row)]
        yield Round(1, sources, [0 if step.send is None else step.send.stop - step.send.first for step in row])
