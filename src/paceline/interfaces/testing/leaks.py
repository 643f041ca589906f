"""Checking that code leaves nothing behind: no process, thread, descriptor, shared memory or file in /tmp."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PATIENCE = 30.0  # seconds in which what is about to end may end, on a busy machine


@dataclass(frozen=True)
class Before:
    """What there was before a block."""

    newest: str
    children: set[int]
    threads: set[threading.Thread]
    descriptors: set[str]
    scratch: set[Path]


@dataclass
class _Read:
    """The children that were read last, which takes milliseconds, and the newest process at that time."""

    newest: str = ""
    children: set[int] = field(default_factory=set)


_read = _Read()


def _children() -> set[int]:
    """Worker processes: descendants of this one. The forkserver and multiprocessing's resource tracker stay, so that
    the next run starts quickly; they end with this process.
    """
    pids = set()
    for pid in _descendants(this := os.getpid()):
        try:
            child = psutil.Process(pid)
            command = " ".join(child.cmdline())
            helper = child.ppid() == this and ("forkserver" in command or "resource_tracker" in command)
            if not helper and child.status() != psutil.STATUS_ZOMBIE:
                pids.add(pid)
        except psutil.NoSuchProcess:
            continue
    return pids


def _descendants(pid: int) -> Iterator[int]:
    """Yield the children of a process, theirs, and so on; psutil reads all processes of the machine for that."""
    if not Path(f"/proc/{pid}/task/{pid}/children").exists():  # a kernel without it, or the process has ended
        with suppress(psutil.NoSuchProcess):
            yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
        return
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the process or the thread has ended
            for child in map(int, file.read_text(encoding="utf-8").split()):
                yield child
                yield from _descendants(child)


def _newest() -> str:
    """The number of the process or thread that was started last on this machine; no child is new while it stays."""
    return Path("/proc/loadavg").read_text(encoding="utf-8").split()[-1]


def _descriptors() -> set[str]:
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if "memfd:paceline" in target or "eventfd" in target:
            descriptors.add(f"{name} -> {target}")
    return descriptors


def _scratch() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("paceline-*"))


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Fail when the block leaves something that was not there before."""
    newest = _newest()
    if newest != _read.newest:
        _read.newest, _read.children = newest, _children()
    before = Before(newest, _read.children, set(threading.enumerate()), _descriptors(), _scratch())
    yield
    leftovers = _left(before)
    if leftovers:
        # Memory is freed with the last object that refers to it, and that may be part of a reference cycle. Collecting
        # looks at every object that PyTorch and its imports made, so it is done only where something is left.
        gc.collect()
    end = time.monotonic() + PATIENCE
    while leftovers and time.monotonic() < end:
        time.sleep(0.01)
        leftovers = _left(before)
    assert not leftovers, f"left behind: {leftovers}"


def _left(before: Before) -> list[str]:
    children = set() if _newest() == before.newest else _children() - before.children
    return [
        *(f"process {pid}" for pid in children),
        *(f"thread {t.name}" for t in set(threading.enumerate()) - before.threads),
        *(f"descriptor {d}" for d in _descriptors() - before.descriptors),
        *(f"file {f}" for f in _scratch() - before.scratch),
    ]
