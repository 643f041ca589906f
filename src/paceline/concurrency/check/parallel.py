"""Checks many files: in this process, or in several. What goes wrong in one file does not reach the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

from paceline.concurrency.check.engine import Examined, examine, examine_together
from paceline.concurrency.check.rules import RULES, own_rules
from paceline.concurrency.check.rules.rule import Rule

FEW = 200  # files below which starting processes costs more than it saves
BATCH = 16  # programs per message to a process


class Source(NamedTuple):
    """A file's path, as findings name it, and its text."""

    path: str
    text: str


Program = tuple[Source, ...]  # a file alone, or files that are read together


class Checked(NamedTuple):
    """What is found in one file, and what went wrong in the checker itself."""

    examined: Examined
    failure: str = ""


def check_programs(programs: Sequence[Program], jobs: int, own: str = "") -> Iterator[list[Checked]]:
    """Yield the results of each program's files, in order. With `jobs` at 0 a large tree gets a process per CPU.

    `own` are the rows of the rules that the project has added.
    """
    workers = jobs or (_processors() if sum(map(len, programs)) >= FEW else 1)
    batches = [programs[first : first + BATCH] for first in range(0, len(programs), BATCH)]
    if min(workers, len(batches)) <= 1:
        yield from _check_batch(programs, own)
        return
    with _pool(min(workers, len(batches))) as pool:
        futures = [pool.submit(_check_batch, batch, own) for batch in batches]
        try:
            for batch, future in zip(batches, futures, strict=True):
                try:
                    results = future.result()
                except BrokenProcessPool:
                    # The kernel may have ended the process for its memory:
                    # each program alone may fit, and if not, only it is lost.
                    results = [_check_apart(program, own) for program in batch]
                yield from results
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _processors() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_batch(programs: Sequence[Program], own: str) -> list[list[Checked]]:
    rules = (*RULES.values(), *own_rules(own))
    return [_check(program, rules) for program in programs]


def _check(program: Program, rules: Sequence[Rule]) -> list[Checked]:
    if len(program) == 1:
        return [_check_alone(program[0], rules)]
    try:
        examined = examine_together({source.path: source.text for source in program}, rules)
        return [Checked(examined[source.path]) for source in program]
    except Exception as error:  # a fault of the checker: named, and the files are read one by one
        first, *others = (_check_alone(source, rules) for source in program)
        return [first._replace(failure=first.failure or _named(error)), *others]


def _check_alone(source: Source, rules: Sequence[Rule]) -> Checked:
    try:
        return Checked(examine(source.path, source.text, rules))
    except Exception as error:  # a fault of the checker: named, and the other files continue
        return Checked(Examined([]), _named(error))


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _check_apart(program: Program, own: str) -> list[Checked]:
    """Check a program in a process of its own, since one of its batch ended the process that it was in."""
    with _pool(1) as pool:
        try:
            return pool.submit(_check_batch, [program], own).result()[0]
        except BrokenProcessPool:
            return [Checked(Examined([]), "the checking process ended") for _ in program]


def _pool(workers: int) -> ProcessPoolExecutor:
    """Return fresh processes: a fork would copy the locks of this program's threads."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _ignore_interrupts)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, which ends the pool and says so once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
