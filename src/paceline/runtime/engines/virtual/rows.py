"""Where a simulation's rows go: into a trace, or only into totals, where there would be too many to keep.

Rows arrive one at a time, as the fields of `Row`, or for all workers at once, as columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paceline.runtime.runs.trace import DTYPE, Columns, Kind, Row, Trace

BLOCK = 1 << 16  # rows that are kept as tuples before they become columns
Numbers = npt.NDArray[Any]


class Rows(Protocol):
    """A place for rows."""

    def add(self, row: tuple[float, ...]) -> None:
        """Take one row, with all fields of `Row`."""

    def add_all(self, kind: Kind, update: int, **columns: Numbers | float) -> None:
        """Take a row of each worker; fields that are left out are as in a `Row` without them."""


class TraceRows:
    """Keeps all rows: as tuples, which are converted to columns a block at a time."""

    def __init__(self) -> None:
        self._tuples: list[tuple[float, ...]] = []
        self._blocks: list[Columns] = []

    def add(self, row: tuple[float, ...]) -> None:
        self._tuples.append(row)
        if len(self._tuples) >= BLOCK:
            self._convert()

    def add_all(self, kind: Kind, update: int, **columns: Numbers | float) -> None:
        self._convert()
        count = max(len(value) for value in columns.values() if isinstance(value, np.ndarray))
        block = np.empty(count, DTYPE)
        for name, default in Row._field_defaults.items():
            block[name] = columns.get(name, default)
        block["kind"], block["update"], block["worker"] = kind, update, columns.get("worker", np.arange(count))
        self._blocks.append(block)

    def _convert(self) -> None:
        if self._tuples:
            self._blocks.append(np.array(self._tuples, DTYPE))
            self._tuples = []

    def trace(self) -> Trace:
        """Return the trace, in the order in which rows ended."""
        self._convert()
        rows = np.concatenate(self._blocks) if self._blocks else np.empty(0, DTYPE)
        return Trace(rows[np.argsort(rows["end"], kind="stable")])


@dataclass
class Totals:
    """Sums over all rows: what is left of a simulation that is too large for a trace."""

    #: Rows of each kind.
    count: Counter[int] = field(default_factory=Counter)
    #: Nanoseconds of each kind, waiting included, and those of waiting.
    spent: Counter[int] = field(default_factory=Counter)
    waited: Counter[int] = field(default_factory=Counter)
    bytes: int = 0
    samples: int = 0
    #: When the last row ended, in nanoseconds.
    end: int = 0
    #: How many pushes had each staleness.
    staleness: Counter[int] = field(default_factory=Counter)

    def add(self, row: tuple[float, ...]) -> None:
        kind, _, _, shard, base, version, start, end, waited, samples, sent, *_ = row
        what = int(kind)
        self.count[what] += 1
        self.spent[what] += int(end - start)
        self.waited[what] += int(waited)
        self.bytes += int(sent)
        self.samples += int(samples)
        if end > self.end:
            self.end = int(end)
        if what == Kind.APPLY and shard == 0 and version > 0 and base >= 0:
            self.staleness[int(version - 1 - base)] += 1

    def add_all(self, kind: Kind, update: int, **columns: Numbers | float) -> None:
        start, end = np.asarray(columns["start"]), np.asarray(columns["end"])
        self.count[int(kind)] += len(end)
        self.spent[int(kind)] += int((end - start).sum())
        self.waited[int(kind)] += int(np.sum(columns.get("waited", 0)))
        self.bytes += int(np.sum(columns.get("bytes", 0)))
        self.samples += int(np.sum(columns.get("samples", 0)))
        self.end = max(self.end, int(end.max()))
        if kind == Kind.APPLY:
            self.staleness[0] += len(end)

    @staticmethod
    def of(trace: Trace) -> Totals:
        """Sum up a trace."""
        totals = Totals()
        for row in trace.rows.tolist():
            totals.add(row)
        return totals

    @property
    def seconds(self) -> float:
        """The seconds of the whole run."""
        return self.end / 1e9

    @property
    def mean_staleness(self) -> float:
        """The mean staleness of a push, in updates."""
        total = sum(self.staleness.values())
        return sum(value * count for value, count in self.staleness.items()) / total if total else 0.0

    @property
    def wait_share(self) -> float:
        """The share of the workers' time that is spent waiting."""
        return sum(self.waited.values()) / max(1, sum(self.spent.values()))

    def quantile(self, share: float) -> int:
        """Return the staleness that this share of pushes does not exceed."""
        total, cumulative = sum(self.staleness.values()), 0
        for value in sorted(self.staleness):
            cumulative += self.staleness[value]
            if cumulative >= share * total:
                return value
        return 0


def row(
    kind: Kind,
    worker: int,
    update: int,
    shard: int = -1,
    base: int = -1,
    version: int = -1,
    times: Sequence[int] = (0, 0, 0),
    samples: int = 0,
    sent: int = 0,
    value: float = math.nan,
    weight: float = -1.0,
) -> tuple[float, ...]:
    """Return the fields of a `Row`: a tuple, which is made in a quarter of the time of a `Row`."""
    start, end, *waited = times
    before = waited[0] if waited else 0
    return kind, worker, update, shard, base, version, start, end, before, samples, sent, value, weight
