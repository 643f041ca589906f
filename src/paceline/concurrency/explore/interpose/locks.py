"""`threading.Lock`, `RLock` and `Condition` under control."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.interpose.control import me, step
from paceline.concurrency.explore.models.condition import ConditionModel
from paceline.concurrency.explore.models.lock import LockModel
from paceline.concurrency.explore.operation import Place

real_lock, real_rlock, RealCondition = threading.Lock, threading.RLock, threading.Condition


class Lock:
    """A lock whose holder is known."""

    reentrant = False

    def __new__(cls, *args: Any) -> Any:
        if not control.is_controlled():
            return real_rlock() if cls.reentrant else real_lock()
        return super().__new__(cls)

    def __init__(self) -> None:
        self.model = LockModel(self.reentrant)
        self.name = control.name_of_new(type(self).__name__)
        self.since: Place | None = None

    def __str__(self) -> str:
        return self.name

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        thread = me()
        if self.reentrant and self.model.owner == thread:
            self.model.take(thread)
            return True
        if not blocking:
            step("tries", self, id(self), acquires=True)
            if not self.model.free_for(thread):
                return False
        elif not self._wait(None if timeout < 0 else timeout):
            return False
        self.model.take(thread)
        self.since = control.place()
        return True

    def _wait(self, timeout: float | None) -> bool:
        thread = me()
        free: Callable[[], bool] = lambda: self.model.free_for(thread)  # noqa: E731
        return step(
            "takes", self, id(self), ready=free, timeout=timeout, acquires=True, holder=lambda: self.model.owner
        )

    def release(self) -> None:
        if self.model.depth == 1:
            step("releases", self, id(self), releases=True)
        self.model.release(me())

    def locked(self) -> bool:
        step("looks at", self, id(self), mode="read")
        return self.model.depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

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
        self._wait(None)
        self.model.take_again(me(), depth)
        self.since = control.place()


class RLock(Lock):
    """A lock that its holder may take again."""

    reentrant = True


class Condition:
    """A condition over a controlled lock."""

    def __new__(cls, lock: Any = None) -> Any:
        if not control.is_controlled() or not (lock is None or isinstance(lock, Lock)):
            return RealCondition(lock)
        return super().__new__(cls)

    def __init__(self, lock: Lock | None = None) -> None:
        self.name = control.name_of_new("Condition")
        if lock is None:
            lock = object.__new__(RLock)
            lock.__init__()  # type: ignore[misc]  # not by its name, which would look at who calls
        self.lock, self.model = lock, ConditionModel()
        self.early_signal: tuple[str, Place] | None = None
        self.acquire, self.release = lock.acquire, lock.release

    def __str__(self) -> str:
        return f"a notification of {self.name}"

    def __enter__(self) -> bool:
        return self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self.lock._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        ticket = self.model.wait()
        depth = self.lock._release_save()
        try:
            return step("waits for", self, id(self), ready=lambda: ticket.notified, timeout=timeout, acquires=True)
        finally:
            self.model.leave(ticket)
            self.lock._acquire_restore(depth)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        from paceline.concurrency.explore.interpose.clock import monotonic

        end = None if timeout is None else monotonic() + timeout
        while not (result := predicate()):
            seconds = None if end is None else end - monotonic()
            if seconds is not None and seconds <= 0:
                break
            self.wait(seconds)
        return result

    def notify(self, n: int = 1) -> None:
        if not self.lock._is_owned():
            raise RuntimeError("cannot notify on un-acquired lock")
        step("notifies", self, id(self), releases=True)
        if not self.model.notify(n):
            self.early_signal = (control.task_name(me()), control.place())

    def notify_all(self) -> None:
        self.notify(max(1, len(self.model.waiting)))

    notifyAll = notify_all  # noqa: N815  # as Python calls it


def install() -> None:
    """Put the locks in the place of those of `threading`."""
    for each in (Lock, RLock, Condition):
        setattr(threading, each.__name__, each)
