"""`threading.Lock`, `RLock`, `Condition`, `Semaphore`, `BoundedSemaphore`, `Event` and `Barrier` under control."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.interpose.control import Controlled, me, step
from paceline.concurrency.explore.models import BarrierModel, ConditionModel, LockModel, SemaphoreModel
from paceline.concurrency.explore.operation import Place


class Lock(Controlled):
    """A lock whose holder is known."""

    real, reentrant = staticmethod(threading.Lock), False
    all: list[Lock] = []  # noqa: RUF012

    def __init__(self) -> None:
        Lock.all.append(self)
        self.model = LockModel(self.reentrant)
        self.name = control.name_of_new(type(self).__name__)
        self.since: Place | None = None
        self.since_step = 0  # of its holder

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        thread = me()
        if self.reentrant and self.model.owner == thread:
            self.model.take(thread)
            return True
        taken = self._wait(blocking, None if timeout is None or timeout < 0 else timeout)
        if taken:
            self._take(thread)
        return taken

    def _take(self, thread: int, depth: int = 1) -> None:
        self.model.take(thread, depth)
        self.since, self.since_step = control.place(), control.own_steps()

    def _wait(self, blocking: bool, timeout: float | None) -> bool:
        thread = me()
        rest: Any = {"ready": lambda: self.model.free_for(thread), "holder": lambda: self.model.owner}
        return step("takes", self, id(self), block=blocking, timeout=timeout, acquires=True, **rest)

    def release(self) -> None:
        if self.model.depth == 1:
            step("releases", self, id(self), releases=True)
        self.model.release(me())

    def locked(self) -> bool:
        step("looks at", self, id(self), mode="read")
        return self.model.depth > 0

    @property
    def held(self) -> str:
        """Who holds it since which line, as the end of a clause."""
        if self.model.owner is None or self.since is None:
            return ""
        file = self.since.file.rpartition("/")[2]
        return f", which {control.task_name(self.model.owner)} holds since {file}:{self.since.line}"

    def _at_fork_reinit(self) -> None:
        self.model = LockModel(self.reentrant)

    # What Python's own Condition, and programs that copy it, use of a reentrant lock.

    def _is_owned(self) -> bool:
        return self.model.owner == me()

    def _release_save(self) -> int:
        step("releases", self, id(self), releases=True)
        return self.model.release_all()

    def _acquire_restore(self, depth: int) -> None:
        self._wait(True, None)
        self._take(me(), depth)


class RLock(Lock):
    """A lock that its holder may take again."""

    real, reentrant = staticmethod(threading.RLock), True


class Condition(Controlled):
    """A condition over a controlled lock."""

    real = threading.Condition

    def __new__(cls, lock: Any = None) -> Any:
        controlled = control.is_controlled() and (lock is None or isinstance(lock, Lock))
        return object.__new__(cls) if controlled else cls.real(lock)

    def __init__(self, lock: Lock | None = None) -> None:
        self.name = control.name_of_new("Condition")
        lock = RLock() if lock is None else lock
        self.lock, self.model = lock, ConditionModel()
        self.early_signal: tuple[str, Place] | None = None
        self.acquire, self.release = lock.acquire, lock.release

    def wait(self, timeout: float | None = None) -> bool:
        self._check_owned("wait")
        ticket = self.model.wait()
        # A thread that has tested something since it took the lock has missed no earlier notification.
        notification = Notification(
            self.name, None if control.own_steps() > self.lock.since_step else self.early_signal
        )
        depth = self.lock._release_save()
        try:
            ready: Callable[[], bool] = lambda: ticket.notified  # noqa: E731
            return step("waits for", notification, id(self), ready=ready, timeout=timeout, acquires=True)
        finally:
            self.model.leave(ticket)
            self.lock._acquire_restore(depth)

    wait_for = threading.Condition.wait_for

    def _check_owned(self, action: str) -> None:
        if not self.lock._is_owned():
            raise RuntimeError(f"cannot {action} on un-acquired lock")

    def notify(self, n: int = 1) -> None:
        self._check_owned("notify")
        step("notifies", self, id(self), releases=True)
        if not self.model.notify(n):
            self.early_signal = (control.task_name(me()), control.place())

    def notify_all(self) -> None:
        self.notify(max(1, len(self.model.waiting)))

    notifyAll = notify_all  # noqa: N815  # as Python calls it


class Notification(NamedTuple):
    """What a thread waits for at a condition."""

    condition: str
    early_signal: tuple[str, Place] | None  # who notified it, and where, before the thread waited

    def __str__(self) -> str:
        return f"a notification of {self.condition}"


class Semaphore(Controlled):
    """A number of slots."""

    real: Any = threading.Semaphore
    bounded = False

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self.name = control.name_of_new(type(self).__name__)
        self.model = SemaphoreModel(value, value if self.bounded else None)

    def __str__(self) -> str:
        return f"a slot of {self.name}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        ready: Callable[[], bool] = lambda: self.model.value > 0  # noqa: E731
        taken = step("waits for", self, id(self), block=blocking, ready=ready, timeout=timeout, acquires=True)
        self.model.value -= taken
        return taken

    def release(self, n: int = 1) -> None:
        step("releases", self, id(self), releases=True)
        self.model.release(n)


class BoundedSemaphore(Semaphore):
    """A number of slots that never has more than at its beginning."""

    real, bounded = threading.BoundedSemaphore, True


class Event(Controlled):
    """A flag."""

    real = threading.Event

    def __init__(self) -> None:
        self.name, self.flag = control.name_of_new("Event"), False

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
    """A line that threads cross together."""

    real = threading.Barrier

    def __init__(self, parties: int, action: Callable[[], Any] | None = None, timeout: float | None = None) -> None:
        self.name = control.name_of_new("Barrier")
        self.model, self._action, self._timeout = BarrierModel(parties), action, timeout

    def __str__(self) -> str:
        return f"{self.name}, where {self.model.arrived} of {self.model.parties} have arrived"

    def wait(self, timeout: float | None = None) -> int:
        step("arrives at", self.name, id(self), acquires=True, releases=True)
        if self.model.broken:
            raise threading.BrokenBarrierError
        generation, number = self.model.arrive()
        if self.model.arrived == self.model.parties:
            try:
                if self._action:
                    self._action()
            except BaseException:
                self.model.broken = True
                raise
            self.model.open()
            return number
        limit = self._timeout if timeout is None else timeout
        passed: Callable[[], bool] = lambda: self.model.passed(generation)  # noqa: E731
        if not step("waits for", self, id(self), ready=passed, timeout=limit, acquires=True):
            self.model.broken = True
        if self.model.broken and self.model.generation == generation:
            raise threading.BrokenBarrierError
        return number

    def abort(self) -> None:
        step("aborts", self.name, id(self))
        self.model.broken = True

    def reset(self) -> None:
        step("resets", self.name, id(self))
        self.model.reset()

    parties = property(lambda self: self.model.parties)
    n_waiting = property(lambda self: self.model.arrived)
    broken = property(lambda self: self.model.broken)


PRIMITIVES: tuple[Any, ...] = (Lock, RLock, Semaphore, BoundedSemaphore, Condition, Event, Barrier)
