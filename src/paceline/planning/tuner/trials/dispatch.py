"""Workers that run legs, in processes of this machine or of others: who has which legs, and what a death means.

There is no server and no database: each worker has a line to the tuner, which answers its reports. When a worker dies,
its leg begins again with another one; if that happens several times, the trial has failed, and no other.

Trials of less than a few milliseconds travel in batches, so that a worker does not wait for the tuner after each.
When a worker dies with a batch, its legs are then given out one by one, which shows the one that is to blame.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.errors import TuningError
from paceline.planning.tuner.study import Assignment
from paceline.planning.tuner.trials import Ended, Report
from paceline.planning.tuner.trials.worker import END, FLUSH, READY, REPORT, UNUSABLE

#: What a pool says of a worker itself: it has come, or it is no more.
JOINED, DIED = "joined", "died"
#: How a worker has died whose whole rank is lost: that says nothing about what the worker was about to do.
WITH_RANK = "with its rank"
ATTEMPTS = 3  # how often a leg is begun whose worker dies
LOOK = 0.25  # seconds between two looks at workers that are silent
#: A worker is taken to hang when it is silent for so many times the longest silence seen, and at least so many seconds.
HANGS = 20.0, 120.0
MOST = 16  # legs in a batch
#: The time of the slowest leg of late: seconds that it is taken to be at first, and what is left of it after each leg.
#: So there are no batches before fifty legs that were all short, nor for a hundred after one that was long.
SLOWEST, FORGETTING = 1.0, 0.9


class WorkerPool(Protocol):
    """The workers' processes, and the lines to them."""

    #: How many workers there are to be.
    workers: int

    def receive(self, seconds: float) -> Sequence[tuple[int, tuple[Any, ...]]]:
        """Return messages with their workers, after waiting at most so long for the first one."""

    def send(self, worker: int, message: Any) -> None:
        """Send a worker legs or an answer; of one that is dead, `receive` says so."""

    def end(self, worker: int) -> None:
        """End a worker, of which `receive` then says that it is dead."""

    def close(self) -> None:
        """End all workers."""


@dataclass
class TrialWorker:
    """What a worker was given."""

    #: Legs that have not ended, in their order, and how many of them were sent.
    given: list[Assignment] = field(default_factory=list)
    sent: int = 0
    #: Whether it gets no second leg, as its first one may be what an earlier worker died of.
    alone: bool = False
    ready: bool = False
    heard: float = field(default_factory=time.monotonic)
    #: Why it was ended by the tuner.
    why: str = ""


class Dispatcher:
    """Runs legs with the workers of a pool.

    `timeout` is the time in seconds for which a trial may be silent; None: it follows from the silences seen. Without
    `ahead` a worker gets a leg only when it is free, as a sampler wants it that learns from every trial. `patience` is
    for how many seconds it may be without any worker.
    """

    def __init__(
        self,
        pool: WorkerPool,
        report: Report,
        timeout: float | None = None,
        ahead: bool = True,
        patience: float = 120.0,
    ) -> None:
        self.pool, self.report, self.timeout, self.ahead, self.patience = pool, report, timeout, ahead, patience
        self.workers = pool.workers
        self.joined: dict[int, TrialWorker] = {}
        #: Legs whose worker has died.
        self.left: deque[Assignment] = deque()
        #: How often each trial's worker has died in its present leg.
        self.deaths = Counter[int]()
        self.longest = 0.0  # silence of a trial, in seconds
        self.slowest = SLOWEST
        self._someone = time.monotonic()  # when there was a worker last

    def free(self) -> Sequence[int]:
        """Return a worker for each leg that it may take; one that has half of its legs left may take more."""
        batch = self._batch()
        most = 2 * batch if batch > 1 else 1
        return [
            number
            for number, worker in self.joined.items()
            if not worker.alone and not (self.left and not worker.given) and len(worker.given) < most - batch + 1
            for _ in range(most - len(worker.given))
        ]

    def start(self, assignment: Assignment, worker: int) -> None:
        self.joined[worker].given.append(assignment)

    def wait(self) -> Sequence[Ended]:
        """Return legs that have ended; none, when a worker has come that may take one."""
        ended: list[Ended] = []
        joined = False
        while not ended and not joined:
            for number, worker in self.joined.items():
                self._send(number, worker)
            for number, message in self.pool.receive(LOOK):
                joined |= message[0] == JOINED
                ended += self._receive(number, *message)
            self._poll()
        return ended

    def close(self) -> None:
        self.pool.close()

    # --- within ---

    def _send(self, number: int, worker: TrialWorker) -> None:
        """Send a worker the legs that it may have and has not."""
        if self.left and not worker.given:
            worker.given.append(self.left.popleft())
            worker.alone = True
        if batch := worker.given[worker.sent :]:
            if not worker.sent:
                worker.heard = time.monotonic()
            worker.sent += len(batch)
            self.pool.send(number, batch)

    def _receive(self, number: int, kind: str, *rest: Any) -> list[Ended]:
        if kind == JOINED:
            self.joined[number] = TrialWorker()
            return []
        worker, now = self.joined.get(number), time.monotonic()
        if worker is None:
            return []
        if kind == DIED:
            return self._died(number, rest[0])
        if worker.ready and worker.given:
            self.longest = max(self.longest, now - worker.heard)
        worker.heard = self._someone = now
        if kind == READY:
            worker.ready = True
        elif kind == REPORT and worker.given:
            self.pool.send(number, self.report(*rest))
        elif kind == UNUSABLE:
            raise TuningError(f"a worker cannot run trials: {rest[0]}")
        elif kind == END:
            return self._ended(worker, rest[0])
        return []

    def _ended(self, worker: TrialWorker, ended: list[Ended]) -> list[Ended]:
        """Take legs off a worker's list."""
        del worker.given[: len(ended)]
        worker.sent -= len(ended)
        worker.alone &= bool(worker.given)
        for each in ended:
            self.deaths.pop(each.trial, None)
            if each.value is not None:  # one that failed at once says nothing about the others
                self.slowest = max(each.seconds, FORGETTING * self.slowest)
        return ended

    def _batch(self) -> int:
        """Return how many legs are sent together: as many as take about as long as a worker keeps their ends."""
        return min(MOST, max(1, int(FLUSH / max(self.slowest, 1e-9)))) if self.ahead else 1

    def _died(self, number: int, how: str) -> list[Ended]:
        """Leave a worker's legs to others; the one that it died with begins again, or has failed."""
        worker = self.joined.pop(number)
        assignments = worker.given
        if not worker.ready and not assignments and how != WITH_RANK:
            raise TuningError(f"a worker process ended {how} before it could begin")
        ended: list[Ended] = []
        if assignments and worker.sent == 1:  # of several legs it is not known which one was to blame
            trial = assignments[0].leg.trial
            self.deaths[trial] += 1
            if worker.why or self.deaths[trial] >= ATTEMPTS:
                attempts = self.deaths.pop(trial)
                reason = f"its process ended {how} in {attempts} attempts"
                ended = [Ended(trial, None, reason=worker.why or reason)]
                del assignments[0]
        self.left.extend(assignments)
        return ended

    def _poll(self) -> None:
        """End workers that are silent for too long."""
        limit, now = self.timeout or max(HANGS[1], HANGS[0] * self.longest), time.monotonic()
        for number, worker in self.joined.items():
            if worker.sent and worker.ready and not worker.why and now - worker.heard > limit:
                worker.why = f"it was silent for {limit:.0f} s, and its process was ended"
                self.pool.end(number)
        if self.joined:
            self._someone = now
        elif now - self._someone > self.patience:
            raise TuningError(f"no worker has come for {self.patience:.0f} s; look at what the other ranks printed")
