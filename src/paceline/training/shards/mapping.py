"""The files of a column, mapped into memory.

Files of fixed rows are mapped at adjacent addresses, so that the column is one array and a row is found by its number:

    address   |<-- 00000.x.bin -->|<-- 00001.x.bin -->|<- 00002.x.bin ->|
    row       0                   R                   2 R               rows

Every file but the last fills whole pages, as `PAGE_ROWS` sees to.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.errors import DataError

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
