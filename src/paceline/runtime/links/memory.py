"""Memory that processes of one machine share: zeroed bytes, integers and tensors, and the order of stores to it."""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Sequence
from multiprocessing.reduction import DupFd

import torch
from torch import Tensor

from paceline.errors import MachineError

PAGE = 4096
LINE = 64  # bytes of a cache line


def lines(size: int) -> int:
    """`size` rounded up to whole cache lines, as `Memory.take` does."""
    return -(-size // LINE) * LINE


class Memory:
    """A memfd of zeroed bytes, sent to another process by its descriptor.

    It has no name, so nothing is left behind by SIGKILL, and the small /dev/shm of a container does not bound it. Parts
    are taken one after another; processes that take the same parts in the same order find them in the same places.
    """

    def __init__(self, size: int) -> None:
        self.size = max(PAGE, -(-size // PAGE) * PAGE)
        self.descriptor = os.memfd_create("paceline", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, self.size)
        self._map()

    def _map(self) -> None:
        self.raw = memoryview(mmap.mmap(self.descriptor, self.size))
        #: Bytes that have been taken so far.
        self._taken = 0

    def __getstate__(self) -> dict[str, object]:
        return {"size": self.size, "descriptor": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.size = state["size"]  # type: ignore[assignment]
        self.descriptor = state["descriptor"].detach()  # type: ignore[attr-defined]
        self._map()

    @classmethod
    def of(cls, descriptor: int, size: int) -> Memory:
        """Map the bytes behind a descriptor that another process made."""
        memory = cls.__new__(cls)
        memory.size, memory.descriptor = size, descriptor
        memory._map()
        return memory

    def close(self) -> None:
        """Close the descriptor. The bytes stay as long as a process maps them."""
        os.close(self.descriptor)

    def rewind(self) -> None:
        """Take from the beginning again."""
        self._taken = 0

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes, which begin on a cache line."""
        start = self._taken
        self._taken = start + lines(size)
        return self.raw[start : start + size]

    def ints(self, count: int) -> memoryview:
        """Return the next `count` integers of 64 bits."""
        return self.take(8 * count).cast("q")

    def tensor(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return a vector over the next `count` numbers."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.take(count * dtype.itemsize), dtype=dtype)


class SharedTensors:
    """Copies of tensors in shared memory, found there by every process that `memory` was sent to."""

    def __init__(self, tensors: Sequence[Tensor], memory: Memory | None = None) -> None:
        self.shapes = [(tuple(t.shape), t.dtype) for t in tensors]
        self.memory = memory or Memory(sum(lines(t.nbytes) for t in tensors))
        if memory is None:
            for mine, source in zip(self.open(), tensors, strict=True):
                mine.copy_(source)

    def open(self) -> tuple[Tensor, ...]:
        """Return the tensors, as views of the shared memory."""
        self.memory.rewind()
        return tuple(self.memory.tensor(torch.Size(shape).numel(), dtype).view(shape) for shape, dtype in self.shapes)


# The order in which other processes see what a process stores.
#
# Shared memory is published without a lock: a process writes the data, then a counter that says that the data lie
# ready. A process that sees the counter reads the data.
#
#     writer    data = ...         reader    until counter is n
#               counter = n                  ... = data
#
# That holds where the processor keeps the order of stores and of loads, as x86-64 does (total store order). Others,
# such as ARM, need a fence on both sides, which Python does not have. So what relies on the order asks here first:
# the tables' offers, the mailboxes of pipelines, the rings of the trace, the lockers, and the cells of the backend.

KEEPS_ORDER = ("x86_64",)


def lacking() -> str:
    """Why this processor cannot be relied on, as the end of a sentence; empty where it can."""
    machine = platform.machine()
    return "" if machine in KEEPS_ORDER else f"has a {machine} processor, not an x86-64"


def require_store_order(what: str) -> None:
    """Raise MachineError where `what` would not be safe on this processor."""
    if reason := lacking():
        raise MachineError(
            f"this machine {reason}: {what} shares memory between processes and needs a processor that keeps the order "
            "of stores. Train on an x86-64, or in one process with engine='virtual'"
        )
