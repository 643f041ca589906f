"""What workers write for their parent to read: the state that a checkpoint holds, and snapshots to be evaluated.

    slot A  | tag | length | description | tensors ...     the state after update 300
    slot B  | tag | length | description | tensors ...     the state after update 200; the next to be overwritten

Each slot is a memfd and grows with its content. Its tag says what it holds, and is -1 while it is being changed. The
users of a slot make sure that it is not read while it is overwritten (see `state_writer`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from multiprocessing.reduction import DupFd
from pathlib import Path

import torch
from torch import Tensor

from paceline.runtime.links.memory import PAGE
from paceline.training.parameters.worker_state import ALIGN, WorkerState, copied, pack, tensor_slots, unpacked

EMPTY = -1
HEAD = 64  # bytes before the description


class StateSlot:
    """One of the two slots of a buffer; it is sent to another process as a descriptor."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("paceline-state", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, PAGE)
        self._map()
        self.tag = EMPTY

    def __getstate__(self) -> dict[str, object]:
        return {"descriptor": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.descriptor = state["descriptor"].detach()  # type: ignore[attr-defined]
        self._map()

    def _map(self) -> None:
        self._raw = memoryview(mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size))
        self._head = self._raw[:HEAD].cast("q")

    @property
    def tag(self) -> int:
        """The update or version of the state in it; -1 while it is being changed."""
        return self._head[0]

    @tag.setter
    def tag(self, tag: int) -> None:
        self._head[0] = tag

    def write(self, tag: int, worker_state: WorkerState) -> None:
        """Overwrite the slot; its tag is set last, when the state is whole."""
        where, size = tensor_slots(worker_state.tensors)
        description = pickle.dumps((where, worker_state.facts))
        start = self._start(len(description))
        if start + size > len(self._raw):
            os.ftruncate(self.descriptor, -(-(start + size) // PAGE) * PAGE)
            self._map()
        self.tag, self._head[1], self._head[2] = EMPTY, len(description), size
        self._raw[HEAD : HEAD + len(description)] = description
        if size:
            pack(list(worker_state.tensors.values()), where, self._tensor(start, size))
        self.tag = tag

    def read(self) -> WorkerState:
        """Copy the state out."""
        if os.fstat(self.descriptor).st_size > len(self._raw):
            self._map()
        length, size = self._head[1], self._head[2]
        where, facts = pickle.loads(self._raw[HEAD : HEAD + length])
        raw = copied(self._tensor(self._start(length), size)) if size else torch.empty(0, dtype=torch.uint8)
        return WorkerState(unpacked(raw, where), facts)

    def _start(self, description: int) -> int:
        return HEAD + -(-description // ALIGN) * ALIGN

    def _tensor(self, start: int, size: int) -> Tensor:
        return torch.frombuffer(self._raw[start : start + size], dtype=torch.uint8)


class StateBuffer:
    """The two slots of one worker: one can be read while the other is overwritten."""

    def __init__(self) -> None:
        self.slots = (StateSlot(), StateSlot())

    @property
    def tags(self) -> list[int]:
        """The tags of the slots that hold a state."""
        return [slot.tag for slot in self.slots if slot.tag != EMPTY]

    @property
    def next(self) -> StateSlot:
        """The slot to overwrite: the older one."""
        return min(self.slots, key=lambda slot: slot.tag)

    @property
    def newest(self) -> WorkerState | None:
        """The newest state; None if there is none."""
        slot = max(self.slots, key=lambda slot: slot.tag)
        return None if slot.tag == EMPTY else slot.read()

    def read(self, tag: int) -> WorkerState | None:
        """Copy out the state with this tag; None if no slot has it."""
        return next((slot.read() for slot in self.slots if slot.tag == tag), None)

    def clear(self) -> None:
        """Drop what a worker has left that another one takes the place of."""
        for slot in self.slots:
            slot.tag = EMPTY

    def close(self) -> None:
        for slot in self.slots:
            os.close(slot.descriptor)


@dataclass(frozen=True)
class ResumePoint:
    """The update from which a worker trains, and how it writes its state for checkpoints."""

    #: Updates that were made before the run was resumed.
    updates: int = 0
    resumed: bool = False
    #: Updates between two checkpoints; 0 if checkpoints are not taken by updates.
    checkpoint_every: int = 0
    #: None if the run keeps no checkpoints.
    state_buffer: StateBuffer | None = None
    #: Notifies the parent that a state was written, or many rows of the trace.
    notify: Callable[[], None] | None = None
    #: Whether the state after the last update is written, too, so that a run that is done can go on.
    at_end: bool = False


# Snapshots that workers write and the parent reads, in one file.
#
# The file has no name, so that nothing is left of it after SIGKILL, unless the run may be resumed; then it lies in the
# run's folder.


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
