from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paceline.errors import RunFolderError
from paceline.runtime.runs.schema import SCHEMA_VERSION
from paceline.runtime.runs.trace import ROW, SCHEMA, Kind, Row, Trace, TraceRing, TraceWriter


def _rows(count: int) -> Trace:
    return Trace.of([Row(Kind.APPLY, n % 3, n, 0, n - 1, n + 1, n, n + 1, 0, 10, 4, 0.5) for n in range(count)])


def test_a_ring_gives_back_what_was_written_once() -> None:
    ring = TraceRing(memoryview(bytearray(TraceRing.size())))
    for turn in range(3):
        for number in range(TraceRing.ROWS - 5):
            ring.write(Kind.COMPUTE, 1, number, -1, 0, 0, turn, turn, 0, 0, 0, 0.25, -1.0)
        rows = ring.drain()
        assert rows["update"].tolist() == list(range(TraceRing.ROWS - 5))
        assert set(rows["start"].tolist()) == {turn}
        assert len(ring.drain()) == 0


def test_a_full_ring_says_so() -> None:
    ring = TraceRing(memoryview(bytearray(TraceRing.size())))
    for number in range(TraceRing.ROWS):
        assert not ring.full
        ring.write(Kind.COMPUTE, 0, number, -1, 0, 0, 0, 0, 0, 0, 0, 0.0, -1.0)
    assert ring.full
    ring.drain()
    assert not ring.full


def test_many_rows_at_once_are_those_one_by_one() -> None:
    """Over the end of the ring, and as many as there is space for."""
    ring, rows = TraceRing(memoryview(bytearray(TraceRing.size()))), _rows(TraceRing.ROWS + 7).rows
    ring.write(*rows[0].tolist())
    assert ring.write_rows(rows[1:]) == TraceRing.ROWS - 1
    assert ring.full
    assert np.array_equal(ring.drain(), rows[:-7])
    assert ring.write_rows(rows[-7:]) == 7
    assert np.array_equal(ring.drain(), rows[-7:])


def test_a_written_trace_reads_back(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.arrow", 0)
    writer.append(_rows(10).rows)
    writer.close()
    assert np.array_equal(Trace.open(tmp_path / "trace.arrow").rows, _rows(10).rows)
    with pa.OSFile(str(tmp_path / "trace.arrow")) as file:
        assert pa.ipc.open_stream(file).read_all().num_rows == 10


def test_a_trace_cut_off_anywhere_opens_to_its_last_whole_part(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.arrow", 0)
    for _ in range(5):
        writer.append(_rows(7).rows)
    writer.close()
    whole = (tmp_path / "trace.arrow").read_bytes()
    seen = set()
    for cut in range(len(whole) // 3, len(whole), 97):
        (tmp_path / "cut.arrow").write_bytes(whole[:cut])
        rows = len(Trace.open(tmp_path / "cut.arrow"))
        assert rows % 7 == 0
        seen.add(rows)
    assert len(seen) > 2


def test_a_row_is_bounded() -> None:
    assert ROW.size == 104
    assert len(Row._fields) == 13


def _with_version(path: Path, metadata: dict[str, str] | None) -> Path:
    """Write a trace of ten rows whose schema has this metadata."""
    schema = SCHEMA.with_metadata(metadata)
    rows = _rows(10).rows
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_batch(pa.record_batch([pa.array(rows[name]) for name in Row._fields], schema=schema))
    return path


def test_a_trace_without_a_version_opens(tmp_path: Path) -> None:
    assert np.array_equal(Trace.open(_with_version(tmp_path / "trace.arrow", None)).rows, _rows(10).rows)


def test_a_trace_of_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    path = _with_version(tmp_path / "trace.arrow", {"paceline.schema_version": "7"})
    with pytest.raises(RunFolderError, match=r"trace.arrow has schema version 7; this paceline reads up to \d+"):
        Trace.open(path)


def test_a_written_trace_carries_the_version_and_reads_by_name(tmp_path: Path) -> None:
    """Another order of columns makes no difference."""
    writer = TraceWriter(tmp_path / "trace.arrow", 0)
    writer.append(_rows(10).rows)
    writer.close()
    table = pa.ipc.open_stream(str(tmp_path / "trace.arrow")).read_all()
    assert table.schema.metadata[b"paceline.schema_version"] == str(SCHEMA_VERSION).encode()
    turned = table.select(list(reversed(table.column_names)))
    with pa.OSFile(str(tmp_path / "turned.arrow"), "wb") as file, pa.ipc.new_stream(file, turned.schema) as stream:
        stream.write_table(turned)
    assert np.array_equal(Trace.open(tmp_path / "turned.arrow").rows, _rows(10).rows)


def test_rows_of_a_node_whose_clock_is_behind_are_read(tmp_path: Path) -> None:
    row = Row(Kind.COMPUTE, 1, 0, -1, 0, -1, start=-83_435_838, end=-69_155_208)
    writer = TraceWriter(tmp_path / "trace.arrow", 0)
    writer.append(Trace.of([row]).rows)
    writer.close()
    assert len(Trace.open(tmp_path / "trace.arrow")) == 1
