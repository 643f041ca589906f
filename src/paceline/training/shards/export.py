"""Writes a split as one Parquet or Arrow file, for programs that read those."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import UsageError
from paceline.training.shards.manifest import Column, Manifest
from paceline.training.shards.mapping import map_ragged, map_rows
from paceline.training.shards.writing import shard_files

if TYPE_CHECKING:
    import pyarrow as pa


def export(folder: Path, manifest: Manifest, file: Path, split: str = "") -> int:
    """Write a split, by default the first, into a .parquet or .arrow file, and return its rows.

    The rows keep their order. Text and words are strings, vectors and ragged rows lists.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.suffix not in (".parquet", ".arrow"):
        raise UsageError(f"--export {file}: the name must end in .parquet or .arrow")
    name = split or next(iter(manifest.splits))
    batches = _batches(folder / name, manifest, [shard.rows for shard in manifest.split(name).shards])
    first = next(batches, None)
    if first is None:
        raise UsageError(f"--export {file}: the split {name} of {folder} holds no rows")
    partial, rows = file.with_name(f"{file.name}.partial"), 0
    writes = pq.ParquetWriter if file.suffix == ".parquet" else pa.ipc.new_file
    with writes(str(partial), first.schema) as writer:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            writer.write_batch(batch)
            rows += batch.num_rows
            batch = next(batches, None)
    partial.replace(file)
    return rows


def _batches(folder: Path, manifest: Manifest, shards: list[int]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for number, rows in enumerate(shards):
        files = {
            name: [folder / each for each in shard_files(number, name, column)]
            for name, column in manifest.columns.items()
        }
        arrays = [_array(column, files[name], rows) for name, column in manifest.columns.items()]
        yield pa.record_batch(arrays, list(manifest.columns))


def _array(column: Column, files: list[Path], rows: int) -> pa.Array:
    """Return the rows of one shard's column."""
    import pyarrow as pa

    if column.ragged:
        values, ends = map_ragged(files[0], files[1], column.dtype)
        starts = np.concatenate([[0], ends])
        if column.text:
            buffers = [None, pa.py_buffer(starts), pa.py_buffer(np.ascontiguousarray(values))]
            return pa.Array.from_buffers(pa.large_string(), rows, buffers)
        return pa.LargeListArray.from_arrays(starts, pa.array(values))
    numbers: Any = map_rows(files, column.dtype, column.shape, rows)
    if column.vocabulary:
        return pa.array([None, *column.vocabulary], pa.string()).take(pa.array(numbers))
    array = pa.array(numbers.reshape(-1))
    for size in reversed(column.shape):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
