"""Checks many files: in this process, or in several. What goes wrong in one file does not reach the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

from paceline.check.engine import Examined, examine

FEW = 200  # files below which starting processes costs more than it saves
BATCH = 16  # files per message to a process


class Source(NamedTuple):
    """A file's path, as findings name it, and its text."""

    path: str
    text: str


class Checked(NamedTuple):
    """What is found in one file, or what went wrong in the checker itself."""

    examined: Examined
    failure: str = ""


def check_sources(sources: Sequence[Source], jobs: int) -> Iterator[Checked]:
    """Yield the result of each source, in order. With `jobs` at 0 a large tree gets a process per CPU."""
    workers = jobs or (_processors() if len(sources) >= FEW else 1)
    batches = [sources[first : first + BATCH] for first in range(0, len(sources), BATCH)]
    if min(workers, len(batches)) <= 1:
        yield from _check_batch(sources)
        return
    with _pool(min(workers, len(batches))) as pool:
        futures = [pool.submit(_check_batch, batch) for batch in batches]
        try:
            for batch, future in zip(batches, futures, strict=True):
                try:
                    results = future.result()
                except BrokenProcessPool:
                    results = [_check_apart(source) for source in batch]
                yield from results
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _processors() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_batch(sources: Sequence[Source]) -> list[Checked]:
    return [_check(source) for source in sources]


def _check(source: Source) -> Checked:
    try:
        return Checked(examine(source.path, source.text))
    except Exception as error:  # a fault of the checker: named, and the other files go on
        return Checked(Examined([]), f"{type(error).__name__}: {error}")


def _check_apart(source: Source) -> Checked:
    """Check a file in a process of its own, since one of its batch ended the process that it was in."""
    with _pool(1) as pool:
        try:
            return pool.submit(_check, source).result()
        except BrokenProcessPool:
            return Checked(Examined([]), "the checking process ended")


def _pool(workers: int) -> ProcessPoolExecutor:
    """Return fresh processes: a fork would copy the locks of this program's threads."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _ignore_interrupts)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, which ends the pool and says so once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
