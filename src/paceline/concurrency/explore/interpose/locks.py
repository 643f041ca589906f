"""`threading.Lock`, `RLock`, `Condition`, `Semaphore`, `BoundedSemaphore`, `Event` and `Barrier` under control.

Each announces what it is about to do by `step`, and changes its state when that returns: in between, other threads run.
"""

from __future__ import annotations

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
        if self.owner is None or self.since is None:
            return ""
        file = self.since.file.rpartition("/")[2]
        return f", which {control.task_name(self.owner)} holds since {file}:{self.since.line}"

    # What conditions, and the standard library, use of a lock.

    def _at_fork_reinit(self) -> None:
        self.owner, self.depth = None, 0

    def _is_owned(self) -> bool:
        return self.owner == me()

    def _release_save(self) -> int:
        step("releases", self, id(self), releases=True)
        depth, self.owner, self.depth = self.depth, None, 0
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
    bound: int | None = None

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self.name, self.value = control.name_of_new(type(self).__name__), value

    def __str__(self) -> str:
        return f"a slot of {self.name}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        ready: Callable[[], bool] = lambda: self.value > 0  # noqa: E731
        taken = step("waits for", self, id(self), ready=ready, timeout=timeout, block=blocking, acquires=True)
        self.value -= taken
        return taken

    def release(self, n: int = 1) -> None:
        step("releases", self, id(self), releases=True)
        if self.bound is not None and self.value + n > self.bound:
            raise ValueError("Semaphore released too many times")
        self.value += n


class BoundedSemaphore(Semaphore):
    """A number of slots that never has more than at its beginning."""

    real = threading.BoundedSemaphore

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self.bound = value


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


class Barrier(Controlled):
    """A line that threads cross together: the last of its parties lets all continue."""

    real = threading.Barrier
    n_waiting = generation = 0
    broken = False

    def __init__(self, parties: int, action: Callable[[], Any] | None = None, timeout: float | None = None) -> None:
        self.name, self.parties = control.name_of_new("Barrier"), parties
        self._action, self._timeout = action, timeout

    def __str__(self) -> str:
        return f"{self.name}, where {self.n_waiting} of {self.parties} have arrived"

    def wait(self, timeout: float | None = None) -> int:
        step("arrives at", self.name, id(self), acquires=True, releases=True)
        if self.broken:
            raise threading.BrokenBarrierError
        generation, number = self.generation, self.n_waiting
        self.n_waiting += 1
        if self.n_waiting == self.parties:
            try:
                if self._action:
                    self._action()
            except BaseException:
                self.broken = True
                raise
            self.n_waiting, self.generation = 0, self.generation + 1
            return number
        limit = self._timeout if timeout is None else timeout
        passed: Callable[[], bool] = lambda: self.generation > generation or self.broken  # noqa: E731
        if not step("waits for", self, id(self), ready=passed, timeout=limit, acquires=True):
            self.broken = True
        if self.broken and self.generation == generation:
            raise threading.BrokenBarrierError
        return number

    def abort(self) -> None:
        step("aborts", self.name, id(self))
        self.broken = True

    def reset(self) -> None:
        step("resets", self.name, id(self))
        self.broken, self.n_waiting = self.n_waiting > 0, 0


PRIMITIVES: tuple[Any, ...] = (Lock, RLock, Semaphore, BoundedSemaphore, Condition, Event, Barrier)
