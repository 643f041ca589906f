"""The files of a folder of shards: mapped into memory, compared with the manifest, exported as one file.

Files of fixed rows are mapped at adjacent addresses, so that the column is one array and a row is found by its number:

    address   |<-- 00000.x.bin -->|<-- 00001.x.bin -->|<- 00002.x.bin ->|
    row       0                   R                   2 R               rows

Every file but the last fills whole pages, as `PAGE_ROWS` sees to.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import DataError, UsageError
from paceline.training.shards.manifest import Column, Manifest, ShardFile
from paceline.training.shards.sealed import SealedList
from paceline.training.shards.writing import shard_files

if TYPE_CHECKING:
    import pyarrow as pa


# Compares the files of a folder of shards with its manifest.


def damaged(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each file that is missing, that is not what was written, or that does not belong here."""
    for name, split in manifest.splits.items():
        yield from _differing(
            folder, name, {file: each for shard in split.shards for file, each in shard.files.items()}
        )


def damaged_stream(folder: Path, sealed: SealedList) -> Iterator[str]:
    """Yield such a sentence for the files of the shards that are sealed; a writer may be making the next one."""
    expected = {file: each for shard in sealed.shards for file, each in shard.files.items()}
    yield from _differing(folder, "rows", expected, following=f"{len(sealed.shards):05d}.")


def _differing(folder: Path, name: str, expected: Mapping[str, ShardFile], following: str = "") -> Iterator[str]:
    for file, each in expected.items():
        path = folder / name / file
        if not path.is_file():
            yield f"{name}/{file} is missing"
        elif path.stat().st_size != each.bytes:
            yield f"{name}/{file} has {path.stat().st_size} bytes instead of {each.bytes}"
        elif digest(path) != each.sha256:
            yield f"{name}/{file} has other bytes than were written: its sha256 differs"
    for path in sorted((folder / name).glob("*")) if (folder / name).is_dir() else ():
        if path.name not in expected and not (following and path.name.startswith(following)):
            yield f"{name}/{path.name} does not belong to the folder"


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
#: The way out of every message about a file that is not what the manifest says.
VERIFY = "`paceline data FOLDER --verify` lists every damaged file"
_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000


def map_rows(files: Sequence[Path], dtype: str, shape: tuple[int, ...], rows: int) -> NDArray[np.generic]:
    """Return all rows of a fixed column as one array that reads the files when it is used.

    Pages are private and copied when written, so that a model that changes its input in place never changes a file.
    """
    sizes = [file.stat().st_size for file in files]
    width = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
    if sum(sizes) != rows * width or any(size % mmap.PAGESIZE for size in sizes[:-1]):
        raise DataError(f"the files of {files[0].name} hold {sum(sizes)} bytes and not {rows * width}; {VERIFY}")
    if not rows:
        return np.empty((0, *shape), dtype)
    buffer = mmap.mmap(-1, sum(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    for file, size in zip(files, sizes, strict=True):
        _map_over(address, file, size)
        address += size
    return np.frombuffer(buffer, dtype).reshape(rows, *shape)


def map_ragged(values: Path, ends: Path, dtype: str) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return the values of a shard's ragged column and where each of its rows ends."""
    return _map_file(values, dtype), _map_file(ends, "<i8").astype(np.int64, copy=False)


def _map_file(file: Path, dtype: str) -> NDArray[np.generic]:
    size = file.stat().st_size
    if size % np.dtype(dtype).itemsize:
        raise DataError(f"{file} holds {size} bytes, which is no whole number of values; {VERIFY}")
    return np.memmap(file, dtype, mode="c") if size else np.empty(0, dtype)


def _map_over(address: int, file: Path, size: int) -> None:
    with open(file, "rb") as stream:
        mapped_address = _libc.mmap(
            address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED, stream.fileno(), 0
        )
    if mapped_address == _FAILED:
        raise DataError(f"{file} cannot be mapped into memory: {os.strerror(ctypes.get_errno())}")


# Writes a split as one Parquet or Arrow file, for programs that read those.


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
