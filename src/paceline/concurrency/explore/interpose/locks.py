"""`threading.Lock`, `RLock`, `Condition`, `Semaphore`, `BoundedSemaphore`, `Event` and `Barrier` under control.

Each announces what it is about to do by `step`, and changes its state when that returns: in between, other threads run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.interpose.control import Controlled, me, step
from paceline.concurrency.explore.operation import Place


class Lock(Controlled):
    """A lock whose holder is known."""

    real, reentrant = staticmethod(threading.Lock), False
    all: list[Lock] = []  # noqa: RUF012
    owner: int | None = None
    depth = 0  # how often its holder has taken it
    since: Place | None = None
    since_step = 0  # of its holder

    def __init__(self) -> None:
        self.name = control.name_of_new(type(self).__name__)
        Lock.all.append(self)

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        if self.reentrant and self.owner == me():
            self.depth += 1
            return True
        return self._take(blocking, None if timeout is None or timeout < 0 else timeout)

    def _take(self, block: bool = True, timeout: float | None = None, depth: int = 1) -> bool:
        order: Any = {"acquires": True, "holder": lambda: self.owner}
        free: Callable[[], bool] = lambda: self.depth == 0  # noqa: E731
        if not step("takes", self, id(self), ready=free, timeout=timeout, block=block, **order):
            return False
        self.owner, self.depth = me(), depth
        self.since, self.since_step = control.place(), control.own_steps()
        return True

    def release(self) -> None:
        if self.depth == 1:
            step("releases", self, id(self), releases=True)
        if self.depth == 0 or (self.reentrant and self.owner != me()):
            raise RuntimeError("cannot release un-acquired lock" if self.reentrant else "release unlocked lock")
        self.depth -= 1
        self.owner = self.owner if self.depth else None

    def locked(self) -> bool:
        step("looks at", self, id(self), mode="read")
        return self.depth > 0

    @property
    def held(self) -> str:
        """Who holds it since which line, as the end of a clause."""
        return f", which {control.task_name(self.owner)} holds since {self.since}" if self.depth and self.since else ""

    # What conditions, and the standard library, use of a lock.

    def _at_fork_reinit(self) -> None:
        self.owner, self.depth = None, 0

    def _is_owned(self) -> bool:
        return self.owner == me()

    def _release_save(self) -> int:
        depth, self.depth = self.depth, 1
        self.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        self._take(depth=depth)


class RLock(Lock):
    """A lock that its holder may take again."""

    real, reentrant = staticmethod(threading.RLock), True


class Condition(Controlled):
    """Threads wait in a queue, and a notification wakes those that wait already."""

    real = threading.Condition
    early_signal: tuple[str, Place] | None = None  # by whom, and where, it was notified when no thread waited

    def __new__(cls, lock: Any = None) -> Any:
        controlled = control.is_controlled() and (lock is None or isinstance(lock, Lock))
        return object.__new__(cls) if controlled else cls.real(lock)

    def __init__(self, lock: Lock | None = None) -> None:
        self.name = control.name_of_new("Condition")
        self.lock = RLock() if lock is None else lock
        self.waiting: list[object] = []
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def wait(self, timeout: float | None = None) -> bool:
        self._check_owned("wait")
        place = object()
        self.waiting.append(place)
        # A thread that has tested something since it took the lock has missed no earlier notification.
        has_tested = control.own_steps() > self.lock.since_step
        notification = Notification(self.name, None if has_tested else self.early_signal)
        depth = self.lock._release_save()
        try:
            ready: Callable[[], bool] = lambda: place not in self.waiting  # noqa: E731
            return step("waits for", notification, id(self), ready=ready, timeout=timeout, acquires=True)
        finally:
            self.waiting = [each for each in self.waiting if each is not place]
            self.lock._acquire_restore(depth)

    wait_for = threading.Condition.wait_for

    def notify(self, n: int = 1) -> None:
        self._check_owned("notify")
        step("notifies", self, id(self), releases=True)
        if not self.waiting:
            self.early_signal = (control.task_name(me()), control.place())
        del self.waiting[:n]

    def notify_all(self) -> None:
        self.notify(max(1, len(self.waiting)))

    notifyAll = notify_all  # noqa: N815  # as Python calls it

    def _check_owned(self, action: str) -> None:
        if not self.lock._is_owned():
            raise RuntimeError(f"cannot {action} on un-acquired lock")


class Notification(NamedTuple):
    """What a thread waits for at a condition."""

    condition: str
    early_signal: tuple[str, Place] | None

    def __str__(self) -> str:
        return f"a notification of {self.condition}"


class Semaphore(Controlled):
    """A number of slots."""

    real: Any = threading.Semaphore
    is_bounded = False  # so that it never has more slots than at its beginning

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self.name, self.value, self.bound = control.name_of_new(type(self).__name__), value, value

    def __str__(self) -> str:
        return f"a slot of {self.name}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        ready: Callable[[], bool] = lambda: self.value > 0  # noqa: E731
        taken = step("waits for", self, id(self), ready=ready, timeout=timeout, block=blocking, acquires=True)
        self.value -= taken
        return taken

    def release(self, n: int = 1) -> None:
        step("releases", self, id(self), releases=True)
        if self.is_bounded and self.value + n > self.bound:
            raise ValueError("Semaphore released too many times")
        self.value += n


class BoundedSemaphore(Semaphore):
    """A number of slots with a bound."""

    real, is_bounded = threading.BoundedSemaphore, True


class Event(Controlled):
    """A flag."""

    real, flag = threading.Event, False

    def __init__(self) -> None:
        self.name = control.name_of_new("Event")

    def __str__(self) -> str:
        return f"{self.name} to be set"

    def is_set(self) -> bool:
        step("looks at", self.name, id(self), mode="read", acquires=True)
        return self.flag

    isSet = is_set  # noqa: N815  # as Python calls it

    def set(self) -> None:
        step("sets", self.name, id(self), releases=True)
        self.flag = True

    def clear(self) -> None:
        step("clears", self.name, id(self))
        self.flag = False

    def wait(self, timeout: float | None = None) -> bool:
        done = step("waits for", self, id(self), mode="read", ready=lambda: self.flag, timeout=timeout, acquires=True)
        return done or self.flag


class Barrier(Controlled, threading.Barrier):
    """A line that threads cross together, as Python has it, over a condition under control."""

    real = threading.Barrier

    def __init__(self, parties: int, action: Callable[[], Any] | None = None, timeout: float | None = None) -> None:
        super().__init__(parties, action, timeout)
        self._cond = Condition(Lock())
        self.name = self._cond.name = control.name_of_new("Barrier")


PRIMITIVES: tuple[Any, ...] = (Lock, RLock, Semaphore, BoundedSemaphore, Condition, Event, Barrier)


# --- `queue.Queue`, `LifoQueue`, `PriorityQueue` and `SimpleQueue` under control --------------------------------------
# Each call is one operation, not the dozen of the locks inside: fewer operations mean fewer orders to try.


class Queue(queue.Queue):  # type: ignore[type-arg]
    """A queue, also one that a library makes."""

    reader: int | None = None  # the only thread that may get an item; None where all may

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self.name = control.name_of_new(type(self).__name__)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        room: Callable[[], bool] = lambda: self.maxsize <= 0 or self._qsize() < self.maxsize  # noqa: E731
        if not self._obtain("puts into", room, block, timeout, releases=True):
            raise queue.Full
        self._put(item)
        self.unfinished_tasks += 1

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        reader = me()
        has_item: Callable[[], bool] = lambda: self._qsize() > 0 and self.reader in (None, reader)  # noqa: E731
        if not self._obtain("gets from", has_item, block, timeout, acquires=True):
            raise queue.Empty
        return self._get()

    def _obtain(self, verb: str, ready: Callable[[], bool], block: bool, timeout: float | None, **rest: Any) -> bool:
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        free: Callable[[], bool] = lambda: getattr(self.mutex, "depth", 0) == 0 and ready()  # noqa: E731
        return step(verb, self.name, id(self), ready=free, block=block, timeout=timeout, **rest)

    def task_done(self) -> None:
        step("finishes an item of", self.name, ("items", id(self)), releases=True)
        if self.unfinished_tasks <= 0:
            raise ValueError("task_done() called too many times")
        self.unfinished_tasks -= 1

    def join(self) -> None:
        finished: Callable[[], bool] = lambda: self.unfinished_tasks == 0  # noqa: E731
        step("waits for", f"the unfinished items of {self.name}", ("items", id(self)), ready=finished, acquires=True)

    def qsize(self) -> int:
        step("looks at", self.name, id(self), mode="read")
        return self._qsize()

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self) -> bool:
        return 0 < self.maxsize <= self.qsize()


class SimpleQueue(Queue):
    """A queue without a bound and without `task_done`."""

    def __init__(self) -> None:
        super().__init__()


def install() -> None:
    for each in (queue.LifoQueue, queue.PriorityQueue):
        setattr(queue, each.__name__, type(each.__name__, (Queue, each), {}))
    queue.Queue, queue.SimpleQueue = Queue, SimpleQueue  # type: ignore[misc, assignment]
