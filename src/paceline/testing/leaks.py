"""That a piece of code leaves nothing behind: no process, no thread, no open descriptor, no shared memory, no file
in /tmp.
"""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 30.0  # seconds in which what is about to end may end, on a busy machine


def _children() -> set[int]:
    """Worker processes: descendants of this one. The forkserver and multiprocessing's resource tracker stay, so that
    the next run starts quickly; they end with this process.
    """
    import psutil

    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            servant = child.ppid() == os.getpid() and ("forkserver" in command or "resource_tracker" in command)
            if not servant and child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if "memfd:paceline" in target or "eventfd" in target:
            found.add(f"{name} -> {target}")
    return found


def _scratch() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("paceline-*"))


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Fail when the block leaves something that was not there before."""
    children, threads, descriptors, scratch = (
        _children(),
        set(threading.enumerate()),
        _descriptors(),
        _scratch(),
    )
    yield
    left = _left(children, threads, descriptors, scratch)
    if left:
        # Memory is freed with the last object that refers to it, and that may be part of a reference cycle. Collecting
        # looks at every object that PyTorch and its imports made, so it is done only where something is left.
        gc.collect()
    end = time.monotonic() + PATIENCE
    while left and time.monotonic() < end:
        time.sleep(0.01)
        left = _left(children, threads, descriptors, scratch)
    assert not left, f"left behind: {left}"


def _left(children: set[int], threads: set[threading.Thread], descriptors: set[str], scratch: set[Path]) -> list[str]:
    return [
        *(f"process {pid}" for pid in _children() - children),
        *(f"thread {t.name}" for t in set(threading.enumerate()) - threads),
        *(f"descriptor {d}" for d in _descriptors() - descriptors),
        *(f"file {f}" for f in _scratch() - scratch),
    ]
