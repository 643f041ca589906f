"""`threading.Semaphore`, `BoundedSemaphore`, `Event` and `Barrier` under control."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.interpose.control import step
from paceline.concurrency.explore.models.barrier import BarrierModel
from paceline.concurrency.explore.models.semaphore import SemaphoreModel

RealSemaphore, RealBoundedSemaphore = threading.Semaphore, threading.BoundedSemaphore
RealEvent, RealBarrier = threading.Event, threading.Barrier


class Semaphore:
    """A number of slots."""

    def __new__(cls, value: int = 1) -> Any:
        if not control.is_controlled():
            return (RealBoundedSemaphore if issubclass(cls, BoundedSemaphore) else RealSemaphore)(value)
        return super().__new__(cls)

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self.name = control.name_of_new(type(self).__name__)
        self.model = SemaphoreModel(value, self._bound(value))

    @staticmethod
    def _bound(value: int) -> int | None:
        return None

    def __str__(self) -> str:
        return f"a slot of {self.name}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not blocking:
            step("tries", self, id(self), acquires=True)
            if self.model.value <= 0:
                return False
        elif not step("waits for", self, id(self), ready=lambda: self.model.value > 0, timeout=timeout, acquires=True):
            return False
        self.model.take()
        return True

    def release(self, n: int = 1) -> None:
        step("releases", self, id(self), releases=True)
        self.model.release(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class BoundedSemaphore(Semaphore):
    """A number of slots that never has more than at its beginning."""

    @staticmethod
    def _bound(value: int) -> int | None:
        return value


class Event:
    """A flag."""

    def __new__(cls) -> Any:
        return super().__new__(cls) if control.is_controlled() else RealEvent()

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


class Barrier:
    """A line that threads cross together."""

    def __new__(cls, parties: int, action: Any = None, timeout: float | None = None) -> Any:
        return super().__new__(cls) if control.is_controlled() else RealBarrier(parties, action, timeout)

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
        if self.model.complete:
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

    @property
    def parties(self) -> int:
        return self.model.parties

    @property
    def n_waiting(self) -> int:
        return self.model.arrived

    @property
    def broken(self) -> bool:
        return self.model.broken


def install() -> None:
    """Put them in the place of those of `threading`."""
    for each in (Semaphore, BoundedSemaphore, Event, Barrier):
        setattr(threading, each.__name__, each)
