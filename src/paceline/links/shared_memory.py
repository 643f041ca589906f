"""Memory that processes of one machine share, and survive each other's death in.

- `Memory`    a memfd: it has no name, so nothing is left behind by SIGKILL, and a container's small /dev/shm does
not bound it
- `SharedTensors`  tensors that all may read
- `RecordLock`  an fcntl record lock: about a microsecond, and the kernel releases it when its owner dies
- `Twin`      integers kept twice; changed in the copy and flipped in by one store, so a killed writer changed nothing
- `Bell`      wakes a sleeping process; spinning first, since most waits on one machine are shorter than a wake-up
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
import time
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd

import torch
from torch import Tensor

from paceline.errors import WaitedTooLong

SPIN_SECONDS = 50e-6
LONGEST_SLEEP = 0.05
NAP_SECONDS = 0.002  # a lost wake-up costs at most this
PAGE = 4096


class Memory:
    """A run of zeroed bytes. Travels to another process by its descriptor."""

    def __init__(self, size: int) -> None:
        self.size = max(PAGE, -(-size // PAGE) * PAGE)
        self.descriptor = os.memfd_create("paceline", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, self.size)
        self._map()

    def _map(self) -> None:
        self.raw = memoryview(mmap.mmap(self.descriptor, self.size))
        self._taken = 0

    def __getstate__(self) -> dict[str, object]:
        return {"size": self.size, "descriptor": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.size = state["size"]  # type: ignore[assignment]
        self.descriptor = state["descriptor"].detach()  # type: ignore[attr-defined]
        self._map()

    @classmethod
    def of(cls, descriptor: int, size: int) -> Memory:
        """The bytes behind a descriptor that came some other way."""
        memory = cls.__new__(cls)
        memory.size, memory.descriptor = size, descriptor
        memory._map()
        return memory

    def close(self) -> None:
        """Let go of the descriptor; the bytes live on as long as somebody looks at them."""
        os.close(self.descriptor)

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, on a cache line of their own. Whoever takes in the same order gets the same places."""
        start = self._taken
        self._taken = start + -(-size // 64) * 64
        return self.raw[start : start + size]

    def ints(self, count: int) -> memoryview:
        return self.take(8 * count).cast("q")

    def tensor(self, count: int, dtype: torch.dtype) -> Tensor:
        if count == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.take(count * dtype.itemsize), dtype=dtype)


class SharedTensors:
    """Copies of tensors in shared memory, found there by any process that `memory` was sent to."""

    def __init__(self, tensors: Sequence[Tensor], memory: Memory | None = None) -> None:
        self.shapes = [(tuple(t.shape), t.dtype) for t in tensors]
        self.memory = memory or Memory(sum(-(-t.nbytes // 64) * 64 for t in tensors))
        if memory is None:
            for mine, given in zip(self.open(), tensors, strict=True):
                mine.copy_(given)

    def open(self) -> tuple[Tensor, ...]:
        self.memory._taken = 0
        return tuple(self.memory.tensor(torch.Size(shape).numel(), dtype).view(shape) for shape, dtype in self.shapes)


class Locks:
    """A file of record locks. A process loses all its locks when it closes any descriptor of the file: keep one
    open.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("paceline-locks", os.MFD_CLOEXEC) if descriptor is None else descriptor

    def __getstate__(self) -> dict[str, object]:
        return {"descriptor": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.descriptor = state["descriptor"].detach()  # type: ignore[attr-defined]


FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, owner


class RecordLock:
    """`with lock as waited:`; the requests are packed once, since a lock is taken and given back in every step. Those
    who share it keep out only whoever does not.
    """

    def __init__(self, locks: Locks, number: int, waiter: Waiter, what: str, shared: bool = False) -> None:
        self._descriptor, self._waiter, self.what = locks.descriptor, waiter, what
        self._take = FLOCK.pack(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        self._give = FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0)

    def __enter__(self) -> int:
        """Take the lock; the nanoseconds it was waited for."""
        if self._try():
            return 0
        return self._waiter.until(self._try, self._holder, rung=False)

    def __exit__(self, *_: object) -> None:
        fcntl.fcntl(self._descriptor, fcntl.F_SETLK, self._give)

    def _try(self) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETLK, self._take)
        except OSError:
            return False
        return True

    def _holder(self) -> str:
        answer = FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, self._take))
        return f"process {answer[4]}, which holds {self.what}"


class DoubleBuffer:
    """Integers kept twice. `current` is the valid copy; `begin` gives the other one to change, `commit` makes it valid.

    Nobody may call these without holding the lock that goes with them. The commit is one aligned eight-byte store.
    """

    def __init__(self, memory: Memory, count: int) -> None:
        self._flip = memory.ints(1)
        self._copies = (memory.ints(count), memory.ints(count))

    @property
    def parity(self) -> int:
        return self._flip[0]

    @property
    def current(self) -> memoryview:
        return self._copies[self._flip[0]]

    def begin(self) -> memoryview:
        valid = self._flip[0]
        draft = self._copies[1 - valid]
        draft[:] = self._copies[valid]
        return draft

    def commit(self) -> None:
        self._flip[0] = 1 - self._flip[0]


class Cancelled(Exception):
    """The engine called the run off; the worker goes home without a word."""


class Waiter:
    """How one worker waits: it spins briefly, then sleeps on its bell, never past the deadline, never past an abort.

    Where nobody rings, it sleeps for an eighth of the time it has already waited, so that asking costs little of
    whatever the wait is. With more workers than cores it does not spin: who it waits for may need the core.
    """

    def __init__(
        self,
        worker: int,
        doorbell: Doorbell | None,
        aborted: Callable[[], bool],
        deadline: float,
        where: Callable[[], str],
        crowded: bool = False,
    ) -> None:
        self.worker, self.doorbell, self.deadline = worker, doorbell, deadline
        self._spin = 0 if crowded else int(SPIN_SECONDS * 1e9)
        self._aborted, self._where = aborted, where

    def until(self, ready: Callable[[], bool], whom: Callable[[], str], rung: bool = True) -> int:
        """Return when `ready()`; the nanoseconds it took. `rung`: whoever makes it so rings our bell."""
        start = time.perf_counter_ns()
        while time.perf_counter_ns() - start < self._spin:
            if ready():
                return time.perf_counter_ns() - start
        give_up = start + int(self.deadline * 1e9)
        while not ready():
            if self._aborted() and not ready():
                raise Cancelled
            so_far = time.perf_counter_ns()
            if so_far > give_up:
                raise WaitedTooLong(self.worker, whom(), self.deadline, self._where())
            if rung and self.doorbell is not None:
                self.doorbell.sleep(ready)
            else:
                time.sleep(min(max(SPIN_SECONDS, (so_far - start) / 8e9), LONGEST_SLEEP))
        return time.perf_counter_ns() - start


class Doorbell:
    """An eventfd and a flag saying that its owner sleeps: ringing costs nothing while nobody does."""

    def __init__(self, asleep: memoryview, descriptor: int) -> None:
        self._asleep, self._descriptor = asleep, descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def ring(self) -> None:
        if self._asleep[0]:
            os.eventfd_write(self._descriptor, 1)

    def sleep(self, ready: Callable[[], bool]) -> None:
        """Sleep until rung; a ring that slips between the flag and the sleep costs one nap."""
        self._asleep[0] = 1
        if not ready() and self._poll.poll(NAP_SECONDS * 1000):
            os.eventfd_read(self._descriptor)
        self._asleep[0] = 0


class DoorbellDescriptor:
    """What travels to another process instead of a bell."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if descriptor is None else descriptor

    def __getstate__(self) -> dict[str, object]:
        return {"descriptor": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.descriptor = state["descriptor"].detach()  # type: ignore[attr-defined]
