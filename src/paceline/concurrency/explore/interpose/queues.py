"""`queue.Queue`, `LifoQueue`, `PriorityQueue` and `SimpleQueue` under control.

Each call is one operation, not the dozen of the locks and conditions inside: fewer operations mean fewer orders to try.
"""

from __future__ import annotations

import queue
from typing import Any

from paceline.concurrency.explore.interpose.control import name_of_new, step
from paceline.concurrency.explore.interpose.locks import Lock

_real = {name: getattr(queue.Queue, name) for name in ("__init__", "put", "get", "task_done", "join", "qsize")}
Real = queue.Queue


def _is_controlled(self: Any) -> bool:
    return isinstance(self.mutex, Lock)


def _init(self: Any, maxsize: int = 0) -> None:
    _real["__init__"](self, maxsize)
    self.explored_name = name_of_new(type(self).__name__)


def _put(self: Any, item: Any, block: bool = True, timeout: float | None = None) -> None:
    if not _is_controlled(self):
        _real["put"](self, item, block, timeout)
        return
    room = lambda: self.mutex.model.depth == 0 and (self.maxsize <= 0 or self._qsize() < self.maxsize)  # noqa: E731
    if not _try_or_wait(self, "puts into", room, block, timeout, releases=True):
        raise queue.Full
    self._put(item)
    self.unfinished_tasks += 1


def _get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
    if not _is_controlled(self):
        return _real["get"](self, block, timeout)
    item = lambda: self.mutex.model.depth == 0 and self._qsize() > 0  # noqa: E731
    if not _try_or_wait(self, "gets from", item, block, timeout, acquires=True):
        raise queue.Empty
    return self._get()


def _try_or_wait(self: Any, verb: str, ready: Any, block: bool, timeout: float | None, **order: Any) -> bool:
    """Wait until an item can be put or got; without blocking, look once."""
    if block:
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        return step(verb, self.explored_name, id(self), ready=ready, timeout=timeout, **order)
    step(f"tries: {verb}", self.explored_name, id(self), **order)
    return bool(ready())


def _task_done(self: Any) -> None:
    if not _is_controlled(self):
        _real["task_done"](self)
        return
    step("finishes an item of", self.explored_name, ("items", id(self)), releases=True)
    if self.unfinished_tasks <= 0:
        raise ValueError("task_done() called too many times")
    self.unfinished_tasks -= 1


def _join(self: Any) -> None:
    if not _is_controlled(self):
        _real["join"](self)
        return
    subject = _Unfinished(self)
    step("waits for", subject, ("items", id(self)), ready=lambda: self.unfinished_tasks == 0, acquires=True)


class _Unfinished:
    """What `join` waits for."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __str__(self) -> str:
        return f"the {self._of.unfinished_tasks} unfinished items of {self._of.explored_name}"


def _qsize(self: Any) -> int:
    if not _is_controlled(self):
        return int(_real["qsize"](self))
    step("looks at", self.explored_name, id(self), mode="read")
    return int(self._qsize())


def _empty(self: Any) -> bool:
    return bool(_qsize(self) == 0)


def _full(self: Any) -> bool:
    return bool(0 < self.maxsize <= _qsize(self))


class SimpleQueue(Real):  # type: ignore[type-arg]
    """A queue without a bound and without `task_done`."""

    def __init__(self) -> None:
        super().__init__()


def install() -> None:
    """Put the calls in place, for every kind of queue."""
    methods = {
        "__init__": _init,
        "put": _put,
        "get": _get,
        "task_done": _task_done,
        "join": _join,
        "qsize": _qsize,
        "empty": _empty,
        "full": _full,
    }
    for name, method in methods.items():
        setattr(Real, name, method)
    queue.SimpleQueue = SimpleQueue  # type: ignore[misc, assignment]
