"""A trace that Perfetto opens (ui.perfetto.dev, also offline): the JSON of Chrome's trace events.

A process per run, a thread per worker, a slice per stretch of time; the loss and the staleness as counters. Workers of
one machine share its clock, so their rows lie in one order already; runs are laid over each other by their starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.report.curves import loss_curve, staleness_curve
from paceline.report.reading import Reading
from paceline.runs.time_accounting import Time, spans
from paceline.runs.trace import Columns, Kind

Event = dict[str, Any]
NAMES = {
    Kind.COMPUTE: "compute",
    Kind.MEET: "meet",
    Kind.APPLY: "update",
    Kind.DROP: "too late",
    Kind.SNAPSHOT: "snapshot",
}


def write_trace(readings: Sequence[Reading], output: Path) -> list[Path]:
    found = [event for number, reading in enumerate(readings) for event in events(reading, number)]
    output.write_text(json.dumps({"traceEvents": found, "displayTimeUnit": "ns"}, allow_nan=False) + "\n")
    return [output]


def events(reading: Reading, number: int) -> Iterator[Event]:
    """Of one run; times are microseconds since its start."""
    yield _named("process_name", number, 0, reading.name)
    rows = reading.trace.rows
    for worker in sorted(set(rows["worker"].tolist()) - {-1}):
        yield _named("thread_name", number, worker, f"worker {worker}")
        yield {"ph": "M", "name": "thread_sort_index", "pid": number, "tid": worker, "args": {"sort_index": worker}}
    for row in rows:
        yield from _slices(row, number)
    losses = loss_curve(reading)
    yield from _counter("loss", number, losses.seconds.tolist(), losses.values.tolist())
    seconds, stale = staleness_curve(reading.trace)
    if stale.any():
        yield from _counter("staleness", number, seconds.tolist(), stale.tolist())


def _slices(row: Columns, number: int) -> Iterator[Event]:
    """The row; and, within it or before it, its waiting."""
    kind, worker = int(row["kind"]), int(row["worker"])
    place = {"pid": number, "tid": worker}
    if kind == Kind.DEATH:
        yield {"ph": "i", "name": "died", "s": "t", "ts": int(row["start"]) / 1e3, **place}
        return
    if kind == Kind.RESUME:  # of no worker
        yield {"ph": "i", "name": "resumed", "s": "p", "ts": int(row["start"]) / 1e3, **place, "tid": 0}
        return
    told = {key: int(row[key]) for key in ("update", "shard", "base", "version", "samples", "bytes") if row[key] > 0}
    told["update"] = int(row["update"])
    start, length = int(row["start"]) / 1e3, (int(row["end"]) - int(row["start"])) / 1e3
    yield {"ph": "X", "name": NAMES[Kind(kind)], "ts": start, "dur": length, "args": told, **place}
    starts, ends, kinds = spans(row.reshape(1))
    for first, last, what in zip(starts.tolist(), ends.tolist(), kinds.tolist(), strict=True):
        if what == Time.WAIT:
            yield {"ph": "X", "name": "wait", "ts": first / 1e3, "dur": (last - first) / 1e3, **place}


def _named(what: str, number: int, worker: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": number, "tid": worker, "args": {"name": name}}


def _counter(name: str, number: int, seconds: Sequence[float], values: Sequence[float]) -> Iterator[Event]:
    for at, value in zip(seconds, values, strict=True):
        yield {"ph": "C", "name": name, "pid": number, "ts": at * 1e6, "args": {name: value}}
