"""`queue.Queue`, `LifoQueue`, `PriorityQueue` and `SimpleQueue` under control.

Each call is one operation, not the dozen of the locks and conditions inside: fewer operations mean fewer orders to try.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from paceline.concurrency.explore.interpose.control import name_of_new, step
from paceline.concurrency.explore.interpose.locks import Lock

Real = queue.Queue


def _put(self: Any, item: Any, block: bool = True, timeout: float | None = None) -> None:
    room = lambda: self.mutex.depth == 0 and (self.maxsize <= 0 or self._qsize() < self.maxsize)  # noqa: E731
    if not _obtain(self, "puts into", block, timeout, ready=room, releases=True):
        raise queue.Full
    self._put(item)
    self.unfinished_tasks += 1


def _get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
    has_item = lambda: self.mutex.depth == 0 and self._qsize() > 0  # noqa: E731
    if not _obtain(self, "gets from", block, timeout, ready=has_item, acquires=True):
        raise queue.Empty
    return self._get()


def _obtain(self: Any, verb: str, block: bool, timeout: float | None, **rest: Any) -> bool:
    if block and timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return step(verb, self.explored_name, id(self), block=block, timeout=timeout, **rest)


def _task_done(self: Any) -> None:
    step("finishes an item of", self.explored_name, ("items", id(self)), releases=True)
    if self.unfinished_tasks <= 0:
        raise ValueError("task_done() called too many times")
    self.unfinished_tasks -= 1


def _join(self: Any) -> None:
    subject = f"the unfinished items of {self.explored_name}"
    step("waits for", subject, ("items", id(self)), ready=lambda: self.unfinished_tasks == 0, acquires=True)


def _qsize(self: Any) -> int:
    step("looks at", self.explored_name, id(self), mode="read")
    return int(self._qsize())


def _either(name: str, controlled: Callable[..., Any]) -> None:
    """Let a method be the controlled one, for queues that were made under control."""
    real = getattr(Real, name)

    def call(self: Any, *args: Any, **settings: Any) -> Any:
        return (controlled if isinstance(self.mutex, Lock) else real)(self, *args, **settings)

    setattr(Real, name, call)


_init = Real.__init__


def _named_init(self: Any, maxsize: int = 0) -> None:
    _init(self, maxsize)
    self.explored_name = name_of_new(type(self).__name__)


class SimpleQueue(Real):  # type: ignore[type-arg]
    """A queue without a bound and without `task_done`."""

    def __init__(self) -> None:
        super().__init__()


def install() -> None:
    Real.__init__ = _named_init  # type: ignore[method-assign]
    calls: dict[str, Any] = {"put": _put, "get": _get, "task_done": _task_done, "join": _join, "qsize": _qsize}
    calls |= {"empty": lambda self: _qsize(self) == 0, "full": lambda self: 0 < self.maxsize <= _qsize(self)}
    for name, call in calls.items():
        _either(name, call)
    queue.SimpleQueue = SimpleQueue  # type: ignore[misc, assignment]
