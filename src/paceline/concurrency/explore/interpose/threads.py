"""`threading.Thread` and `Timer` under control; the futures of `concurrent.futures`, whose pools work over threads.

The thread is a real one of Python's, so that `current_thread`, `local` and `enumerate` need no help; its body waits
until the scheduler chooses it. An exception that a task puts into a Future is lost if no one reads it.
"""

from __future__ import annotations

import concurrent.futures.thread as pool
import itertools
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from paceline.concurrency.explore.finding import Finding, exception_in
from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.interpose.control import here, step
from paceline.concurrency.explore.interpose.locks import Lock
from paceline.concurrency.explore.operation import Operation, Touch
from paceline.concurrency.explore.scheduler import Task

RealThread = threading.Thread
_orders = itertools.count()


class Thread(RealThread):
    """A thread that runs when it is chosen."""

    task: Task | None = None
    order: int

    def __new__(cls, *_: Any, **__: Any) -> Thread:
        thread = super().__new__(cls)
        thread.order = next(_orders)
        return thread

    def __hash__(self) -> int:
        return self.order  # a pool joins the threads of a set; by their addresses their order would differ

    def __deepcopy__(self, memo: Any) -> Thread:
        return self

    def start(self) -> None:
        where = here()
        if where is None or not _is_of_program(self):
            super().start()
            return
        run, _ = where
        if self.task is not None:
            raise RuntimeError("threads can only be started once")
        step("starts", self.name, ("thread", len(run.tasks)))
        task = self.task = run.add(self.name, self.daemon)
        body = self.run
        self.run = lambda: _run_controlled(task, body)  # type: ignore[method-assign]
        _announce_start(task)
        super().start()

    def join(self, timeout: float | None = None) -> None:
        task = self.task
        if task is None or here() is None:
            super().join(timeout)
            return
        if threading.current_thread() is self:
            raise RuntimeError("cannot join current thread")
        wait_for_end(task, timeout)

    def is_alive(self) -> bool:
        return super().is_alive() if self.task is None else not has_ended(self.task)


class Timer(Thread):
    """A thread that calls a function after a time, unless it is cancelled before."""

    cancel, run = threading.Timer.cancel, threading.Timer.run

    def __init__(self, interval: float, function: Callable[..., Any], args: Any = None, kwargs: Any = None) -> None:
        super().__init__()
        self.interval, self.function, self.args, self.kwargs = interval, function, args or (), kwargs or {}
        self.finished = threading.Event()


def start_task(name: str, body: Callable[[], Any], context: Any, daemon: bool = False) -> Task:
    """Start a thread that is no Thread of the program's: a process, or a rank."""
    assert control.run is not None
    task = control.run.add(name, daemon, context)
    _announce_start(task)
    RealThread(target=_run_controlled, args=(task, body), name=name, daemon=True).start()
    return task


def _run_controlled(task: Task, body: Callable[[], Any]) -> None:
    """Run the body of a thread as a task, in the thread that calls."""
    run = control.run
    assert run is not None
    run.begin(task)
    try:
        body()
    except SystemExit as error:
        if error.code and control.rank() is not None:  # a rank's code is that of its process
            run.finish(exception_in(task.name, error, "exit"))
    except BaseException as error:
        if threading.excepthook is threading.__excepthook__:
            run.finish(exception_in(task.name, error))
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
    step("ends", task.name, ("end", task.number), releases=True)
    run.end(task)


def _announce_start(task: Task) -> None:
    """Let a new task be chosen, before its real thread has come to its gate."""
    task.pending = Operation("begins", task.name, (Touch(("thread", task.number), "write"),), control.place())


def wait_for_end(task: Task, timeout: float | None = None) -> bool:
    rest: Any = {"ready": lambda: task.done, "holder": lambda: task.number, "acquires": True}
    rest["timeout"] = None if timeout is None or timeout < 0 else timeout
    return step("waits for", task, ("end", task.number), mode="read", **rest)


def has_ended(task: Task) -> bool:
    step("looks at", task, ("end", task.number), mode="read", acquires=True)
    return task.done


def _is_of_program(thread: threading.Thread) -> bool:
    """Whether the code that starts a thread, or its class, is the program's own."""
    module = sys.modules.get(type(thread).__module__)
    return control.is_controlled(3) or control.MARK in getattr(module, "__dict__", {})


# ---- futures

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
    if here() is not None and not getattr(self, "explored_read", False):
        _unread[id(self)] = (self, control.task_name(control.me()))
    _set_exception(self, exception)


def _reading(real: Any) -> Any:
    """Let a method note that the future is read, or can be by what it calls."""

    def call(self: Future[Any], *args: Any, **settings: Any) -> Any:
        _unread.pop(id(self), None)
        self.explored_read = True  # type: ignore[attr-defined]
        return real(self, *args, **settings)

    return call


def _numbered_init(self: Future[Any]) -> None:
    _init(self)
    self.explored_order = next(_orders)  # type: ignore[attr-defined]


_signal, _getsignal = signal.signal, signal.getsignal


def _signal_under_control(number: int, handler: Any) -> Any:
    """Let a handler of the program run at the next step of its thread; keep that of a rank, as of its main thread."""
    if control.rank() is not None:
        handlers = control.context().handlers
        before, handlers[number] = handlers.get(number, signal.SIG_DFL), handler
        return before
    if not callable(handler) or not control.is_controlled():
        return _signal(number, handler)
    task = control.this()[1]
    return _signal(number, lambda *details: task.signals.append(lambda: handler(*details)))


def _getsignal_under_control(number: int) -> Any:
    return _getsignal(number) if control.rank() is None else control.context().handlers.get(number, signal.SIG_DFL)


def begin() -> None:
    """Give the module a lock under control in the place of the one that it made when it was imported."""
    pool._global_shutdown_lock = lock = Lock()  # type: ignore[assignment]
    lock.name = "the lock of concurrent.futures"


def end() -> None:
    """Wait for the threads of all pools, as Python does at its end."""
    for call in reversed(getattr(threading, "_threading_atexits", [])):
        call()


def install() -> None:
    signal.signal, signal.getsignal = _signal_under_control, _getsignal_under_control  # type: ignore[assignment]
    Future.__init__ = _numbered_init  # type: ignore[method-assign, assignment]
    # A set of futures has the same order in every run, which by their addresses it would not have.
    Future.__hash__ = lambda self: self.explored_order  # type: ignore[method-assign, attr-defined]
    Future.set_exception = _note_exception  # type: ignore[method-assign]
    for name in ("result", "exception", "add_done_callback"):
        setattr(Future, name, _reading(getattr(Future, name)))
