"""`concurrent.futures`: its pool of threads works over the controlled threads and queues; its futures are followed.

An exception that a task puts into a Future is lost if no one reads the Future.
"""

from __future__ import annotations

import concurrent.futures.thread as pool
import itertools
import threading
from concurrent.futures import Future
from typing import Any

from paceline.concurrency.explore.finding import Finding, exception_in
from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.interpose.locks import Lock

_orders = itertools.count()
_init = Future.__init__
_set_exception, _exception = Future.set_exception, Future.exception

#: Futures with an exception that no one has read, and the thread that put it there.
_unread: dict[int, tuple[Future[Any], str]] = {}


def unread() -> Finding | None:
    """Return the first exception in a Future that no one has read."""
    for future, who in _unread.values():
        error = _exception(future, 0)
        if isinstance(error, Exception):
            return exception_in(who, error, "unread exception", ", in a Future whose result no one reads")
    return None


def _note_exception(self: Future[Any], exception: BaseException | None) -> None:
    if control.here() is not None and not getattr(self, "explored_read", False):
        _unread[id(self)] = (self, control.task_name(control.me()))
    _set_exception(self, exception)


def _reading(real: Any) -> Any:
    """Let a method note that someone reads the future, or that what it calls can read it."""

    def call(self: Future[Any], *args: Any, **settings: Any) -> Any:
        _unread.pop(id(self), None)
        self.explored_read = True  # type: ignore[attr-defined]
        return real(self, *args, **settings)

    return call


def _numbered_init(self: Future[Any]) -> None:
    _init(self)
    self.explored_order = next(_orders)  # type: ignore[attr-defined]


def begin() -> None:
    """Give the module a lock under control in the place of the one that it made when it was imported."""
    pool._global_shutdown_lock = lock = Lock()  # type: ignore[assignment]
    lock.name = "the lock of concurrent.futures"


def end() -> None:
    """Wait for the threads of all pools, as Python does at its end."""
    for call in reversed(getattr(threading, "_threading_atexits", [])):
        call()


def install() -> None:
    Future.__init__ = _numbered_init  # type: ignore[method-assign, assignment]
    # A set of futures has the same order in every run, which by their addresses it would not have.
    Future.__hash__ = lambda self: self.explored_order  # type: ignore[method-assign, attr-defined]
    Future.set_exception = _note_exception  # type: ignore[method-assign]
    for name in ("result", "exception", "add_done_callback"):
        setattr(Future, name, _reading(getattr(Future, name)))
