"""Lockers: where a worker leaves what is its own, for the parent to keep, and finds it when the run goes on.

    half A  | tag | length | description | tensors ...     as it was after update 300
    half B  | tag | length | description | tensors ...     as it was after update 200; the next to be written over

A half is a memfd of its own and grows with what is put in. Its tag says what it holds, and is -1 while it is being
changed. That nobody reads a half while it is written over is the affair of whoever uses it.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.engines.local.arena import TAKEN, WANTED
from paceline.links.memory import PAGE
from paceline.parameters.worker_state import ALIGN, WorkerState, copied, pack, places, state_of_memories, unpacked

if TYPE_CHECKING:
    from paceline.engines.local.worker_context import WorkerContext

EMPTY = -1
HEAD = 64  # bytes before the description


class Half:
    def __init__(self) -> None:
        self.descriptor = os.memfd_create("paceline-locker", os.MFD_CLOEXEC)
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
        return self._head[0]

    @tag.setter
    def tag(self, tag: int) -> None:
        self._head[0] = tag

    def write(self, tag: int, worker_state: WorkerState) -> None:
        where, size = places(worker_state.tensors)
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
        """A copy of what it holds."""
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
    def __init__(self) -> None:
        self.halves = (Half(), Half())

    @property
    def tags(self) -> list[int]:
        return [half.tag for half in self.halves if half.tag != EMPTY]

    @property
    def next(self) -> Half:
        """The half to be written over: the older one."""
        return min(self.halves, key=lambda half: half.tag)

    @property
    def newest(self) -> WorkerState | None:
        half = max(self.halves, key=lambda half: half.tag)
        return None if half.tag == EMPTY else half.read()

    def read(self, tag: int) -> WorkerState | None:
        return next((half.read() for half in self.halves if half.tag == tag), None)

    def close(self) -> None:
        for half in self.halves:
            os.close(half.descriptor)


@dataclass(frozen=True)
class ResumePoint:
    """What a worker is told of the part of a run that it lives in."""

    start: int = 0  # updates that were made in earlier lives
    resumed: bool = False
    every: int = 0  # updates between two checkpoints; 0: not by updates
    state_buffer: StateBuffer | None = None  # None: there are no checkpoints
    wake: Callable[[], None] | None = None  # the parent, where there is something for it to take


class StateWriter:
    """A worker's hands on its locker."""

    def __init__(self, runner: WorkerContext) -> None:
        self.runner, self.life, self.state_buffer = runner, runner.life, runner.life.state_buffer
        self.control, self.last = runner.arena.control, runner.agenda.updates
        self.found = self.state_buffer.newest if self.state_buffer is not None else None  # of an earlier life

    def in_step(self, before: int, done: int, worker_state: Callable[[], WorkerState]) -> None:
        """Between two updates of a plan that keeps step: leave one's belongings, where it is time to. All updates of
        this worker below `done` are made; when it was last asked, those below `before` were.
        """
        if self.state_buffer is None:
            return
        wanted = self.control[WANTED]
        every = self.life.every
        due = done // every * every if every else 0
        if due <= before:
            due = wanted
        if not before < due <= done or due >= self.last:
            return
        half = self.state_buffer.next
        if half.tag > self.control[TAKEN]:
            self.runner.waiter.until(lambda: self.control[TAKEN] >= half.tag, lambda: "the parent", rung=False)
        half.write(due, worker_state() | self._carried())
        self._wake()

    def at_server(self, version: int, worker_state: Callable[[], WorkerState]) -> None:
        """Under the lock, before the commit: leave what is one's own with the version that one is about to hold. It
        counts when that version is the one that the shard says this worker holds.
        """
        if self.state_buffer is not None:
            self.state_buffer.next.write(version, worker_state())

    def finished(self, before: int, updates: int) -> None:
        """A plan with a server has come so far: wake the parent where it is time for a checkpoint."""
        every = self.life.every
        if self.state_buffer is not None and every and before // every < updates // every:
            self._wake()

    def _wake(self) -> None:
        assert self.life.wake is not None
        self.life.wake()

    def _carried(self) -> WorkerState:
        return state_of_memories("owed", self.runner.carried)
