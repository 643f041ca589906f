"""Snapshots that workers write and the parent reads, in one file.

The file has no name, so that nothing is left of it after SIGKILL, unless the run may be resumed; then it lies in the
run's folder.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from math import prod
from multiprocessing.reduction import DupFd
from pathlib import Path

import torch
from torch import Tensor


class SnapshotFile:
    """A file of snapshots of one size, the n-th at n times that size. Any worker may write any of them."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, every: int, named: Path | None) -> None:
        self.names, self.shapes, self.dtype, self.every = list(shapes), list(shapes.values()), dtype, every
        if named is not None:
            self.descriptor = os.open(named, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            return
        with tempfile.TemporaryFile() as file:
            self.descriptor = os.dup(file.fileno())

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "descriptor": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.descriptor = state["descriptor"].detach()  # type: ignore[attr-defined]

    @property
    def size(self) -> int:
        return sum(map(prod, self.shapes)) * self.dtype.itemsize

    def write(self, updates: int, tensors: list[Tensor]) -> None:
        self._write(updates // self.every * self.size, tensors)

    @contextlib.contextmanager
    def views(self, updates: int) -> Iterator[dict[str, Tensor]]:
        """Map a snapshot for a worker that writes what it holds; other workers write the rest."""
        start = updates // self.every * self.size
        os.posix_fallocate(self.descriptor, 0, start + self.size)
        with mmap.mmap(self.descriptor, start + self.size) as mapped:
            numbers = torch.frombuffer(mapped, dtype=self.dtype, offset=start)
            parts = numbers.split([prod(shape) for shape in self.shapes])
            views = {name: p.view(shape) for name, p, shape in zip(self.names, parts, self.shapes, strict=True)}
            try:
                yield views
            finally:
                del numbers, parts
                views.clear()  # or the mapping could not be closed

    def _write(self, start: int, tensors: list[Tensor]) -> None:
        flat = torch.cat([t.detach().flatten().to("cpu", self.dtype) for t in tensors])
        self._put(flat.view(torch.uint8).numpy().tobytes(), start)  # NumPy has no bfloat16

    def _put(self, raw: bytes, start: int) -> None:
        while raw:  # the kernel writes at most 2 GiB at once
            written = os.pwrite(self.descriptor, raw, start)
            raw, start = raw[written:], start + written

    def put(self, updates: int, content: bytes | memoryview) -> None:
        """Write a snapshot as `read` would find it."""
        self._put(bytes(content), updates // self.every * self.size)

    def read(self, updates: int) -> list[Tensor]:
        raw = bytearray(os.pread(self.descriptor, self.size, updates // self.every * self.size))
        parts = torch.frombuffer(raw, dtype=self.dtype).split([prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def close(self) -> None:
        os.close(self.descriptor)
