"""Trials in processes that are started once and take one leg after another.

There is no server and no database: each worker has a pipe to the tuner, which answers its reports. A worker that dies
is replaced, and its leg begins again; if it dies with the same leg several times, that trial has failed, and no other.

Trials of less than a few milliseconds travel in batches, so that a worker does not wait for the tuner after each.
When a worker dies with a batch, its legs are sent one by one, which shows the one that is to blame.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from torch import Tensor

from paceline.engines.local import forkserver
from paceline.engines.local.process import oom_kills
from paceline.errors import TuningError
from paceline.gradients.pickling import pack
from paceline.links.memory import SharedTensors
from paceline.tuner.study import Assignment
from paceline.tuner.trials import Ended, Objective, Report, Terms
from paceline.tuner.trials.worker import END, FLUSH, READY, REPORT, UNUSABLE, main

ATTEMPTS = 3  # how often a leg is begun whose worker dies
LOOK = 1.0  # seconds between two looks at workers that are silent
#: A worker is taken to hang when it is silent for so many times the longest silence seen, and at least so many seconds.
HANGS = 20.0, 120.0
MOST = 16  # legs in a batch
#: The time of the slowest leg of late: seconds that it is taken to be at first, and what is left of it after each leg.
#: So there are no batches before fifty legs that were all short, nor for a hundred after one that was long.
SLOWEST, FORGETTING = 1.0, 0.9


@dataclass
class Worker:
    """A process with its pipe."""

    process: BaseProcess
    pipe: Connection
    #: The legs that it was given and that have not ended, in their order, and how many of them were sent to it.
    given: list[Assignment] = field(default_factory=list)
    sent: int = 0
    #: Whether legs are sent one by one, since its predecessor died with these.
    careful: bool = False
    ready: bool = False
    heard: float = 0.0  # monotonic time of its last message


class Processes:
    """A worker process for each core, or as many as were asked for.

    `timeout` is the time in seconds for which a trial may be silent; None: it follows from the silences seen. Without
    `ahead` a worker gets a leg only when it is free, as a sampler wants it that learns from every trial.
    """

    def __init__(
        self, objective: Objective, report: Report, terms: Terms, workers: int, timeout: float | None = None,
        ahead: bool = True,
    ) -> None:  # fmt: skip
        self.report, self.terms, self.timeout, self.workers = report, terms, timeout, workers
        self.threads = max(1, len(os.sched_getaffinity(0)) // workers)
        large: list[Tensor] = []
        try:
            self.packed = pack(objective, large)
        except Exception as error:
            raise TuningError(
                f"the job cannot be sent to another process: {type(error).__name__}: {error}; trials='here' runs it in "
                "this one"
            ) from error
        self.shared = SharedTensors(large)
        #: How often each trial's worker has died in its present leg.
        self.deaths = Counter[int]()
        self.longest = 0.0  # silence of a trial, in seconds
        self.ahead, self.slowest = ahead, SLOWEST
        self._oom = oom_kills()
        forkserver.prepare()
        self.team = [self._begin(number) for number in range(workers)]

    def free(self) -> Sequence[int]:
        """Return a worker for each leg that it may take; one that has half of its legs left may take more."""
        batch = self._batch()
        most = 2 * batch if batch > 1 else 1
        return [
            number
            for number, worker in enumerate(self.team)
            if len(worker.given) < most - batch + 1
            for _ in range(most - len(worker.given))
        ]

    def start(self, assignment: Assignment, worker: int) -> None:
        self.team[worker].given.append(assignment)

    def wait(self) -> Sequence[Ended]:
        found: list[Ended] = []
        while not found:
            for worker in self.team:
                _send(worker)
            pipes = {worker.pipe: number for number, worker in enumerate(self.team)}
            for pipe in connection.wait(list(pipes), LOOK):
                number = pipes[pipe]  # type: ignore[index]
                found += self._hear(number)
            found += self._silent()
        return found

    def close(self) -> None:
        for worker in self.team:
            worker.pipe.close()  # at which a worker that is free ends
            if worker.given:
                _kill(worker.process)
        for worker in self.team:
            worker.process.join(5)
            _kill(worker.process)
            worker.process.join()
            worker.process.close()
        self.shared.memory.close()

    # --- within ---

    def _begin(self, number: int) -> Worker:
        context = multiprocessing.get_context("forkserver")
        mine, theirs = context.Pipe()
        given = (number, theirs, self.threads, self.terms, [self.packed], self.shared)
        process = context.Process(target=main, args=given, daemon=True)
        with forkserver.nameless_main(), forkserver.interrupts_wait():
            process.start()
        theirs.close()
        return Worker(process, mine, heard=time.monotonic())

    def _hear(self, number: int) -> list[Ended]:
        """Take one message of a worker, or its death."""
        worker = self.team[number]
        try:
            kind, *rest = worker.pipe.recv()
        except (EOFError, OSError):
            return self._died(number, "")
        now = time.monotonic()
        if worker.ready and worker.given:
            self.longest = max(self.longest, now - worker.heard)
        worker.heard = now
        if kind == READY:
            worker.ready = True
        elif kind == REPORT and worker.given:
            trial, step, value = rest
            stop = self.report(trial, step, value)
            with contextlib.suppress(OSError):
                worker.pipe.send(stop)
        elif kind == UNUSABLE:
            raise TuningError(f"a worker cannot read the job: {rest[0]}; trials='here' runs it in this process")
        elif kind == END:
            return self._ended(worker, rest[0])
        return []

    def _ended(self, worker: Worker, ended: list[Ended]) -> list[Ended]:
        """Take legs off a worker's list."""
        del worker.given[: len(ended)]
        worker.sent -= len(ended)
        worker.careful &= bool(worker.given)
        for each in ended:
            self.deaths.pop(each.trial, None)
            if each.value is not None:  # one that failed at once says nothing about the others
                self.slowest = max(each.seconds, FORGETTING * self.slowest)
        return ended

    def _batch(self) -> int:
        """Return how many legs are sent together: as many as take about as long as a worker keeps their ends."""
        return min(MOST, max(1, int(FLUSH / max(self.slowest, 1e-9)))) if self.ahead else 1

    def _died(self, number: int, why: str) -> list[Ended]:
        """Replace a worker; its leg begins again, or has failed."""
        worker = self.team[number]
        worker.process.join()
        code = worker.process.exitcode or 0
        worker.process.close()
        worker.pipe.close()
        if not worker.ready and not worker.given:
            raise TuningError(f"a worker process ended with {code} before it could begin")
        given = worker.given
        self.team[number] = self._begin(number)
        self.team[number].given, self.team[number].careful = given, bool(given)
        if not given or worker.sent > 1:  # of several legs it is not known which one was to blame
            return []
        trial = given[0].leg.trial
        self.deaths[trial] += 1
        if not why and self.deaths[trial] < ATTEMPTS:
            return []
        del given[0]
        attempts = self.deaths.pop(trial)
        said = f"its process ended {_how(code)} in {attempts} attempts" + " (out of memory)" * (oom_kills() > self._oom)
        return [Ended(trial, None, reason=why or said)]

    def _silent(self) -> list[Ended]:
        """End trials that are silent for too long."""
        limit, found = self.timeout or max(HANGS[1], HANGS[0] * self.longest), list[Ended]()
        for number, worker in enumerate(self.team):
            if worker.sent and worker.ready and time.monotonic() - worker.heard > limit:
                _kill(worker.process)
                found += self._died(number, f"it was silent for {limit:.0f} s, and its process was ended")
        return found


def _send(worker: Worker) -> None:
    """Send a worker the legs that it may have and has not."""
    batch = worker.given[worker.sent : 1 if worker.careful else None]
    if not batch:
        return
    if not worker.sent:
        worker.heard = time.monotonic()
    worker.sent += len(batch)
    with contextlib.suppress(OSError):  # it is dead, which the next wait finds
        worker.pipe.send(batch)


def _kill(process: BaseProcess) -> None:
    with contextlib.suppress(ProcessLookupError, ValueError):
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)


def _how(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
