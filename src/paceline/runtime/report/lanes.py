"""Lanes: one worker's time from start to end, as spans of one kind each and without gaps. Pure.

trace ──▶ lane ──▶ binned    the share of each kind per bin: what a picture of some width shows
              └──▶ merged    a lane with fewer spans that keeps each kind's share
              └──▶ packed    about one byte per span, which the page unpacks when the user zooms in
"""

from __future__ import annotations

import base64
import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.runtime.runs.time_accounting import Time, spans
from paceline.runtime.runs.trace import Trace


class Lane(NamedTuple):
    """The spans of one worker."""

    worker: int
    edges: npt.NDArray[np.int64]  # nanoseconds; span n lies between edge n and n + 1
    kinds: npt.NDArray[np.int64]

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """The total of each kind of time."""
        return np.bincount(self.kinds, np.diff(self.edges), len(Time)) / 1e9


def lanes(trace: Trace, divided: bool = True) -> list[Lane]:
    """The lanes of all workers that have rows in the trace.

    If the trace is not `divided`, its workers also communicate and wait in what it has as computing.
    """
    rows = trace.rows
    worker_lanes = [lane for worker in np.unique(rows["worker"]) if len((lane := _lane(trace, int(worker))).kinds)]
    return worker_lanes if divided else [_undivided(lane) for lane in worker_lanes]


def _undivided(lane: Lane) -> Lane:
    return lane._replace(kinds=np.where(lane.kinds == Time.COMPUTE, int(Time.UNMEASURED), lane.kinds))


def _lane(trace: Trace, worker: int) -> Lane:
    starts, ends, kinds = spans(trace.rows[trace.rows["worker"] == worker])
    order = np.lexsort((ends, starts))
    starts, ends, kinds = starts[order], ends[order], kinds[order]
    if not len(starts):
        return Lane(worker, np.zeros(1, np.int64), kinds)
    ends = np.maximum.accumulate(ends)  # where two overlap, the first one is kept whole
    starts = np.maximum(starts, np.concatenate(([starts[0]], ends[:-1])))
    edges = np.column_stack((starts, ends)).ravel()
    every = np.full(2 * len(kinds) - 1, int(Time.OTHER))  # between two spans
    every[::2] = kinds
    return _tidy(worker, edges, every)


def _tidy(worker: int, edges: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64]) -> Lane:
    """A lane without empty spans, and with neighbours of the same kind joined."""
    real = np.diff(edges) > 0
    edges, kinds = np.concatenate((edges[:1], edges[1:][real])), kinds[real]
    last = np.ones(len(kinds), bool)
    last[:-1] = kinds[1:] != kinds[:-1]
    return Lane(worker, np.concatenate((edges[:1], edges[1:][last])), kinds[last])


def binned(lane: Lane, end: int, bins: int) -> npt.NDArray[np.float64]:
    """[bin, kind]: the share of each kind of time in each bin, from the start of the run to `end`."""
    places = np.linspace(0, end, bins + 1)
    lengths = np.diff(lane.edges)
    sums = []
    for kind in Time:
        until = np.concatenate(([0], np.cumsum(np.where(lane.kinds == kind, lengths, 0))))
        sums.append(np.diff(np.interp(places, lane.edges, until)))
    return np.column_stack(sums) / max(1e-9, end / bins)


def merged(lane: Lane, most: int) -> Lane:
    """The lane in at most so many spans: if it has more, equal bins in which each kind is one span."""
    if len(lane.kinds) <= most:
        return lane
    bins = max(1, most // len(Time))
    low, high = lane.edges[0], lane.edges[-1]
    moved = lane._replace(edges=lane.edges - low)
    shares = binned(moved, int(high - low), bins) * (high - low) / bins
    edges = low + np.concatenate(([0], np.cumsum(shares.ravel()))).round().astype(np.int64)
    return _tidy(lane.worker, edges, np.tile(np.arange(len(Time)), bins))


def packed(lane: Lane, unit: int) -> str:
    """The lane deflated and in base64: the number of spans, the first edge, a byte per kind, and the lengths.

    Numbers are LEB128, in units of `unit` nanoseconds. Edges are rounded rather than lengths, so that rounding errors
    do not accumulate.
    """
    rounded = np.round(np.maximum(lane.edges, 0) / unit).astype(np.int64)
    small = _tidy(lane.worker, rounded, lane.kinds)
    head = _leb128(np.array([len(small.kinds), small.edges[0]]))
    raw = head + small.kinds.astype(np.uint8).tobytes() + _leb128(np.diff(small.edges))
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def _leb128(numbers: npt.NDArray[np.int64]) -> bytes:
    """Numbers at seven bits per byte, lowest first; the top bit says that more follow."""
    groups = [numbers & 0x7F]
    rest = numbers >> 7
    while rest.any():
        groups.append(rest & 0x7F)
        rest = rest >> 7
    table = np.column_stack(groups)
    length = np.maximum(1, len(groups) - (table[:, ::-1] != 0).argmax(1))
    length[~table.any(1)] = 1
    place = np.arange(len(groups))
    table = table | np.where(place < length[:, None] - 1, 0x80, 0)
    return bytes(table[place < length[:, None]].astype(np.uint8).tobytes())
