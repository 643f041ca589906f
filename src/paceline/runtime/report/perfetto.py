"""A trace for Perfetto (ui.perfetto.dev, also offline), in the JSON format of Chrome's trace events.

Each run is a process, each worker a thread, each row of the trace a slice; loss, staleness, learning rate, norm of the
gradient and memory are counters. Workers on
one machine share its clock, so their rows are in order already; several runs are aligned at their starts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.runtime.report.curves import loss_curve, staleness_curve
from paceline.runtime.report.reading import Reading
from paceline.runtime.runs.time_accounting import Time, spans
from paceline.runtime.runs.trace import Columns, Kind

Event = dict[str, Any]
NAMES = {
    Kind.COMPUTE: "compute",
    Kind.COLLECTIVE: "collective",
    Kind.APPLY: "update",
    Kind.DROP: "too late",
    Kind.SNAPSHOT: "snapshot",
    Kind.STAGE: "stage",
    Kind.PULL: "other version",
}
VALUES = {
    Kind.LEARNING_RATE: "learning rate",
    Kind.GRADIENT_NORM: "gradient norm",
    Kind.MEMORY: "memory",
}


def write_trace(readings: Sequence[Reading], output: Path) -> list[Path]:
    """Write the events of all runs to one file."""
    trace_events = [event for number, reading in enumerate(readings) for event in events(reading, number)]
    output.write_text(
        json.dumps({"traceEvents": trace_events, "displayTimeUnit": "ns"}, allow_nan=False) + "\n", encoding="utf-8"
    )
    return [output]


def events(reading: Reading, number: int) -> Iterator[Event]:
    """The events of one run; times are microseconds since its start."""
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
    """A row of the trace, and the wait within or before it."""
    kind, worker = int(row["kind"]), int(row["worker"])
    place = {"pid": number, "tid": worker}
    if kind == Kind.DEATH:
        yield {"ph": "i", "name": "died", "s": "t", "ts": int(row["start"]) / 1e3, **place}
        return
    if kind == Kind.RESUME:  # belongs to no worker
        yield {"ph": "i", "name": "resumed", "s": "p", "ts": int(row["start"]) / 1e3, **place, "tid": 0}
        return
    if kind == Kind.REGROUP:
        yield {"ph": "i", "name": f"group {int(row['version'])}", "s": "t", "ts": int(row["start"]) / 1e3, **place}
        return
    if kind in VALUES:
        name = f"{VALUES[Kind(kind)]} of worker {worker}"
        yield from _counter(name, number, [int(row["start"]) / 1e9], [float(row["value"])])
        return
    arguments = {
        key: int(row[key]) for key in ("update", "shard", "base", "version", "samples", "bytes") if row[key] > 0
    }
    arguments["update"] = int(row["update"])
    start, length = int(row["start"]) / 1e3, (int(row["end"]) - int(row["start"])) / 1e3
    yield {"ph": "X", "name": NAMES[Kind(kind)], "ts": start, "dur": length, "args": arguments, **place}
    starts, ends, kinds = spans(row.reshape(1))
    for first, last, what in zip(starts.tolist(), ends.tolist(), kinds.tolist(), strict=True):
        if what == Time.WAIT:
            yield {"ph": "X", "name": "wait", "ts": first / 1e3, "dur": (last - first) / 1e3, **place}


def _named(what: str, number: int, worker: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": number, "tid": worker, "args": {"name": name}}


def _counter(name: str, number: int, seconds: Sequence[float], values: Sequence[float]) -> Iterator[Event]:
    for at, value in zip(seconds, values, strict=True):
        if math.isfinite(value):  # JSON has no NaN
            yield {"ph": "C", "name": name, "pid": number, "ts": at * 1e6, "args": {name: value}}
