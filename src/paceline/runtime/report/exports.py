"""A run for other programs: JSON, CSV tables, a trace for Perfetto, event files for TensorBoard."""

from __future__ import annotations

import csv
import json
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.names import file_name
from paceline.runtime.report.curves import as_dict, every_curve, loss_curve, staleness_curve
from paceline.runtime.report.formatting import cell
from paceline.runtime.report.reading import Reading, lanes_of, run_stats
from paceline.runtime.runs.schema import strict
from paceline.runtime.runs.time_accounting import Time, spans
from paceline.runtime.runs.trace import Columns, Kind


def write_json(readings: Sequence[Reading], output: Path) -> list[Path]:
    """Write the statistics, the curves and the run.json of each run."""
    stats = run_stats(readings, lanes_of(readings))
    runs = [
        {
            "figures": f.as_dict(),
            "curves": _curves(reading),
            "missing": reading.missing,
            "record": reading.record.as_dict(),
        }
        for reading, f in zip(readings, stats, strict=True)
    ]
    output.write_text(json.dumps(strict({"runs": runs}), allow_nan=False) + "\n", encoding="utf-8")
    return [output]


def _curves(reading: Reading) -> dict[str, Any]:
    seconds, stale = staleness_curve(reading.trace)
    staleness = {"seconds": seconds.tolist(), "values": stale.tolist()}
    return {name: as_dict(curve) for name, curve in every_curve(reading).items()} | {"staleness": staleness}


INTERVALS = ("speedup_interval", "ceiling_share_interval", "test_accuracy_interval")
PARTS = ("shares", "stragglers", "deaths", "metrics", *INTERVALS)  # columns with several values


def write_csv(readings: Sequence[Reading], output: Path) -> list[Path]:
    """Write a row per run, and to ...-curves.csv a row per value of every curve."""
    rows = []
    for f in run_stats(readings, lanes_of(readings)):
        row = {key: value for key, value in f.as_dict().items() if key not in PARTS}
        row |= {name: value for name, value in f.metrics.items() if name not in row}
        for name in INTERVALS:
            row |= dict(zip((f"{name}_low", f"{name}_high"), getattr(f, name) or (None, None), strict=True))
        row |= {f"share_{kind}": value for kind, value in f.shares.items()}
        row |= {"stragglers": " ".join(map(str, f.stragglers)), "deaths": " ".join(map(str, f.deaths))}
        rows.append({name: cell(value) for name, value in row.items()})
    names = list(dict.fromkeys(key for row in rows for key in row))
    with output.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writerows([{name: cell(name) for name in names}, *rows])
    curves = output.with_name(f"{output.stem}-curves{output.suffix}")
    with curves.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["run", "curve", "update", "samples", "seconds", "value"])
        for reading in readings:
            for name, curve in every_curve(reading).items():
                columns = (curve.updates, curve.samples, curve.seconds, curve.values)
                first = (cell(reading.name), cell(name))
                lines.writerows([*first, *row] for row in zip(*(c.tolist() for c in columns), strict=True))
    return [output, curves]


# Event files for TensorBoard, written without TensorBoard.
#
# A file is a sequence of records, each with one Event message of TensorFlow's event.proto:
#
#     record      length (8 bytes) | its masked CRC-32C | the message | its masked CRC-32C        (little endian)
#     Event       1: wall time (double)   2: step (varint)   3: "brain.Event:2" in the first one   5: Summary
#     Summary     1: Value, repeated      Value   1: tag   2: the number (float)
#
# Both formats have not changed since 2015, and this file contains all that is used of them; a library would bring its
# own protobuf.

Scalar = tuple[str, int, float, float]  # tag, step, value, seconds since the run's start
POLYNOMIAL = 0x82F63B78  # Castagnoli's, reversed


def write_events(readings: Sequence[Reading], output: Path) -> list[Path]:
    """Write a folder per run, for `tensorboard --logdir OUTPUT`."""
    written = []
    for reading in readings:
        folder = output / file_name(reading.name)
        folder.mkdir(parents=True, exist_ok=True)
        start = reading.started
        file = folder / f"events.out.tfevents.{int(start):010d}.paceline"
        file.write_bytes(tensorboard_events(sorted(scalars(reading), key=lambda s: (s[3], s[1])), start))
        written.append(file)
    return written


def scalars(reading: Reading) -> Iterator[Scalar]:
    """All values of a run's curves."""
    for tag, curve in every_curve(reading).items():
        for update, value, seconds in zip(
            *(c.tolist() for c in (curve.updates, curve.values, curve.seconds)), strict=True
        ):
            yield tag, round(update), value, seconds
    seconds, stale = staleness_curve(reading.trace)
    if not stale.any():  # synchronous plans have none
        return
    for push, (value, at) in enumerate(zip(stale.tolist(), seconds.tolist(), strict=True)):
        yield "staleness", push + 1, value, at


def tensorboard_events(points: Sequence[Scalar], start: float, head: bool = True) -> bytes:
    """The content of an event file, or without its head what is appended to one."""
    parts = [_record(_double(1, start) + _bytes(3, b"brain.Event:2"))] if head else []
    for tag, step, value, seconds in points:
        scalar = _bytes(1, tag.encode(errors="backslashreplace")) + _key(2, 5) + struct.pack("<f", value)
        parts.append(_record(_double(1, start + seconds) + _key(2, 0) + _varint(step) + _bytes(5, _bytes(1, scalar))))
    return b"".join(parts)


def _record(message: bytes) -> bytes:
    """One TFRecord."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc(length)) + message + struct.pack("<I", masked_crc(message))


def _key(field: int, how: int) -> bytes:
    return _varint(field << 3 | how)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _table() -> list[int]:
    """The table of the byte-wise CRC."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ POLYNOMIAL * (byte & 1)
        table.append(byte)
    return table


CRC = _table()


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and offset as in TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# A trace for Perfetto (ui.perfetto.dev, also offline), in the JSON format of Chrome's trace events.
#
# Each run is a process, each worker a thread, each row of the trace a slice; loss, staleness, learning rate, norm of
# the gradient and memory are counters. Workers on one machine share its clock, so their rows are in order already;
# several runs are aligned at their starts.

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
    events = [event for number, reading in enumerate(readings) for event in trace_events(reading, number)]
    output.write_text(
        json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, allow_nan=False) + "\n", encoding="utf-8"
    )
    return [output]


def trace_events(reading: Reading, number: int) -> Iterator[Event]:
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
