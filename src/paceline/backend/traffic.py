"""All that is under way in a group, and how it goes on: nobody waits in one operation without moving all others.

Collectives of a group are a queue: the first goes as far as it can without waiting. Who waits for one of them, or for a
letter, drives the queues and the mail of all groups of this process. What nobody waits for is driven by the mover, so
that any program that gets through with gloo gets through here.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque

from paceline.backend import troubles
from paceline.backend.board import FAILED, GONE_IN_ORDER, VICTIM, WAITING, WORDS, Board
from paceline.backend.mail import Letter, Mail
from paceline.backend.mover import MOVER
from paceline.backend.works import Operation, Underway
from paceline.errors import CollectiveFailed, CollectivesDiffer, RankGone, RankMissing
from paceline.links.memory import Memory

SPIN_SECONDS = 1e-3  # a wake-up may cost a tenth of it, and is paid by whom one waits for
ALONE_SECONDS = 50e-6  # of them without giving the core to who else wants it
NAP_SECONDS = 0.01  # a lost wake-up, and noticing a death, cost at most this
SHORT_NAP_SECONDS = 0.001  # with other things under way, for which nobody rings this bell
PATIENCE_SECONDS = 0.01  # before a future is handed out unset
SAY_AFTER_SECONDS = 0.05  # of waiting: where, for the others' messages

EVERYTHING: weakref.WeakSet[Traffic] = weakref.WeakSet()


class Traffic:
    def __init__(self, memory: Memory, rank: int, pids: list[int], seconds: float, crowd: int) -> None:
        self.board = Board(memory, rank, pids)
        self.lock = threading.RLock()
        self.mail = Mail(memory, self)
        self.queue: deque[Operation] = deque()
        self.promised: deque[Underway] = deque()  # done, with a future that is to be set
        self.seconds, self.closed = seconds, ""
        self.waiting = 0
        self._failure: CollectiveFailed | None = None
        # With more ranks than cores, who is waited for may need this one.
        self._alone = ALONE_SECONDS if crowd <= len(os.sched_getaffinity(0)) else 0.0
        EVERYTHING.add(self)

    def check(self) -> None:
        if self.closed:
            raise CollectiveFailed(f"the process group {self.closed}; make a new one to go on")
        if self._failure is not None:
            raise CollectiveFailed(f"the process group has failed before: {self._failure}")

    def start(self, operation: Operation) -> None:
        self.check()
        self.queue.append(operation)
        self.advance()

    def advance(self) -> None:
        queue = self.queue
        with self.lock:
            while queue and queue[0].advance():
                if queue:
                    queue.popleft()
        self.keep_promises()

    def keep_promises(self) -> None:
        while self.promised:
            self.promised.popleft().keep_promise()

    def tend(self) -> None:
        """Whatever can go on, does."""
        if not self.closed:
            self.mail.progress()
            self.advance()

    def busy(self) -> bool:
        return not self.closed and (bool(self.queue) or self.mail.busy())

    def move_unwaited(self) -> bool:
        """The mover's turn; whether there was something that nobody waits for."""
        if self.waiting or not self.busy():
            return False
        gone = self.board.gone()
        self.tend()
        for work in [*list(self.queue)[:1], *self.mail.promises()]:
            waited = time.perf_counter() - work.since
            self.judge(work, gone, waited, waited > self.seconds)
        return True

    def wait(self, work: Underway, seconds: float, patient: bool = True) -> None:
        """Until the work is done: spin briefly, then sleep, until the others' coming, their end or the deadline."""
        step = self.mail.progress if isinstance(work, Letter) else self.advance
        start = time.perf_counter()
        spin_end, yield_from = start + SPIN_SECONDS, start + self._alone
        while True:
            step()
            if work.done:
                return
            now = time.perf_counter()
            if now >= spin_end:
                break
            if now >= yield_from:
                os.sched_yield()
        give_up = start + (seconds if seconds > 0 else self.seconds)
        self.waiting += 1
        try:
            while not work.done:
                now = time.perf_counter()
                if not patient and now - start > PATIENCE_SECONDS:
                    MOVER.watch(self)
                    return
                self._wait_a_little(work, now - start, now > give_up)
        finally:
            self.waiting -= 1
            if self.board.mine[WORDS] == WAITING:
                self._say_no_more()

    def _wait_a_little(self, work: Underway, waited: float, too_long: bool) -> None:
        if waited > SAY_AFTER_SECONDS and not self.board.mine[WORDS]:
            words = f"is waiting in {work.tell()} for {troubles.ranks(work.missing())}"
            for traffic in list(EVERYTHING):
                traffic.say(words)
        board = self.board
        seen = board.lie_down()
        try:
            gone = board.gone()  # asked before the work goes on: a rank may come and end at once
            for traffic in list(EVERYTHING):
                traffic.tend()
            if work.done:
                return
            self.judge(work, gone, waited, too_long)
            if not work.done:
                board.sleep(seen, NAP_SECONDS if self.alone() else SHORT_NAP_SECONDS)
        finally:
            board.get_up()

    def alone(self) -> bool:
        return not any(traffic.busy() for traffic in list(EVERYTHING) if traffic is not self)

    def judge(self, work: Underway, gone: set[int], waited: float, too_long: bool) -> None:
        """Whether it is any use to go on waiting."""
        board, differs = self.board, False
        with self.lock:  # another thread may be half way to the next round
            if isinstance(work, Operation) and self.queue:
                work = self.queue[0]  # the others wait for it
                differs = board.differs()
            if work.done:
                return
            missing = work.missing()
        if differs:
            self.fail_by_difference(work)
            return
        never = gone.intersection(missing)
        # A letter from anybody is hopeless only when all are gone.
        if never and (len(never) == len(missing) or not work.anybody):
            self.fail(RankGone(self._told(work, board.culprit(never), True, waited)))
        elif too_long:
            other = missing[0] if missing else board.others[0][0]
            self.fail(RankMissing(self._told(work, other, False, waited)))

    def _told(self, work: Underway, other: int, gone: bool, waited: float) -> str:
        who = f"rank {self.board.rank} waited in {work.tell()}"
        return troubles.missing(self.board, who, other, gone, waited)

    def say(self, words: str, mark: int = WAITING) -> None:
        if not self.closed and self.board.mine[WORDS] != VICTIM:
            self.board.write(self.board.words, WORDS, mark, words)

    def _say_no_more(self) -> None:
        for traffic in list(EVERYTHING):
            if not traffic.waiting and not traffic.closed and traffic.board.mine[WORDS] == WAITING:
                traffic.board.mine[WORDS] = 0

    def fail(self, failure: CollectiveFailed) -> None:
        """Nothing goes on in this group, and the others are told."""
        with self.lock:
            if self._failure is None:
                for traffic in list(EVERYTHING):
                    traffic.say(f"has failed: {failure}", VICTIM)
                self._failure = failure
                self.board.leave(FAILED)
            for work in self._let_go():
                work.finish(failure)
        self.advance()

    def fail_by_difference(self, operation: Operation) -> None:
        if self._failure is None:
            self.fail(CollectivesDiffer(troubles.difference(self.board, str(operation.site))))

    def _let_go(self) -> list[Underway]:
        """Everything that was under way."""
        works = [*self.queue, *self.mail.let_go()]
        self.queue.clear()
        return works

    def close(self, why: str) -> None:
        """Whoever waits in this group, here or in another process, is told so."""
        if self.closed:
            return
        self.closed = why
        self.board.leave(GONE_IN_ORDER)
        with self.lock:
            for work in self._let_go():
                work.finish(CollectiveFailed(f"{work.tell()} did not end: the process group {why}"))
        self.advance()
        self.board.close()
        EVERYTHING.discard(self)


def _leave_all() -> None:
    """At the end of the process, however it comes: the others are told at once, and what it ended with."""
    error = getattr(sys, "last_value", None)
    for traffic in list(EVERYTHING):
        if error is not None:
            mark = VICTIM if isinstance(error, CollectiveFailed) else WAITING
            traffic.say(f"ended with {type(error).__name__}: {error}", mark)
        traffic.close("ended with its process")
    MOVER.stop()


def _in_child() -> None:
    """A forked child is not a rank: it may neither take part nor tell the others that the rank has left."""
    for traffic in list(EVERYTHING):
        traffic.closed = "belongs to the parent process"
    EVERYTHING.clear()
    MOVER.forget_all()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_in_child)
