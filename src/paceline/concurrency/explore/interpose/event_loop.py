"""`time` and `asyncio`: a clock that passes only when the scheduler says so, sleeps that cost nothing, and the loop.

The loop runs its callbacks in its own order, first in, first out, as it always does. What varies is time, and the
threads beside the loop: it may be late, so that several timers are due at once, and a callback from another thread may
come at any time. Choosing among ready callbacks would report what can never happen.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
import warnings
from asyncio import events
from collections.abc import Callable
from typing import Any

from paceline.concurrency.explore.finding import Finding, exception_in
from paceline.concurrency.explore.interpose import chance, control
from paceline.concurrency.explore.interpose.control import here, step
from paceline.concurrency.explore.operation import Place
from paceline.concurrency.explore.scheduler import real_monotonic, real_sleep

#: To look at a clock takes this long, so that a loop that polls a clock ends.
TICK = 0.001
EPOCH = 1_700_000_000.0  # the virtual time of day at the virtual second 0
RealLoop = asyncio.SelectorEventLoop
_sleep = asyncio.sleep
_acquire, _release = asyncio.Lock.acquire, asyncio.Lock.release


def monotonic() -> float:
    """Return the virtual time in a thread under control, else the real one."""
    where = here()
    if where is None:
        return real_monotonic()
    run, task = where
    run.now += TICK
    return run.now + task.ahead


def _virtual(real: Callable[[], Any], epoch: float, unit: Callable[[float], Any]) -> Callable[[], Any]:
    return lambda: unit(monotonic() + epoch) if here() is not None else real()


def sleep(seconds: float, /) -> None:
    if here() is None:
        real_sleep(seconds)
    elif seconds <= 0:
        step("yields to", "other threads", "clock", mode="read")
    else:
        step("sleeps", f"for {seconds:g} s", "clock", ready=lambda: False, timeout=seconds, is_timer=True)


async def _sleep_in_loop(delay: float, result: Any = None) -> Any:
    for _ in range(chance.turns() - 1 if delay <= 0 and here() is not None else 0):
        await _sleep(0)
    return await _sleep(delay, result)


class Loop(RealLoop):
    """The loop of asyncio, waiting under control."""

    _unnoticed = 0  # callbacks that were added without waking it

    def __str__(self) -> str:
        return "its loop"

    @property
    def scenes(self) -> list[tuple[str, str, Place | None]]:
        """What the tasks wait for, where the loop has nothing to do."""
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        return [_scene(task) for task in tasks if not task.done()]

    def time(self) -> float:
        where = here()
        return where[0].now if where else real_monotonic()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and here() is not None and self._exception_handler is None:  # type: ignore[attr-defined]
            task = context.get("task") or context.get("future")
            who = f"task {task.get_name()}" if isinstance(task, asyncio.Task) else "a callback of the loop"
            control.notes.append(exception_in(who, error, "unread exception", f" ({context.get('message', '')})"))
        super().call_exception_handler(context)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        if here() is not None and self._thread_id not in (None, threading.get_ident()):  # type: ignore[attr-defined]
            step("adds a callback to", "the loop, without waking it", id(self))
            message = "another thread adds a callback to the loop without waking it: use call_soon_threadsafe"
            control.notes.append(Finding("not thread-safe", message, place=control.place()))
            self._unnoticed += 1
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        step("calls into", "the loop", id(self), releases=True)
        self._unnoticed = -1  # which wakes it
        return super().call_soon_threadsafe(callback, *args, context=context)

    def _run_once(self) -> None:
        if here() is None:
            super()._run_once()  # type: ignore[misc]
            return
        self._unnoticed = 0
        self._wait_for_work()
        # With a callback ready or a timer due, the loop of asyncio looks at its sockets without waiting.
        super()._run_once()  # type: ignore[misc]

    def _wait_for_work(self) -> None:
        """Wait until a callback is ready or a timer is due; the loop may be late, so that the next one is due too."""
        due = self._next_timer(0.0)
        while not self._has_work() and (due is None or due > self.time()):
            step("waits in", self, id(self), ready=self._has_work, deadline=due, is_timer=True, acquires=True)
            due = self._next_timer(0.0)
        later = self._next_timer(self.time())
        if later is not None:
            step("runs", "callbacks of the loop", id(self), deadline=later, is_timer=True, acquires=True)

    def _has_work(self) -> bool:
        if len(self._ready) > self._unnoticed or self._stopping:  # type: ignore[attr-defined]
            return True
        if len(self._selector.get_map()) > 1:  # type: ignore[attr-defined]  # more than the loop's own pipe
            self._process_events(self._selector.select(0))  # type: ignore[attr-defined]
        return len(self._ready) > self._unnoticed  # type: ignore[attr-defined]

    def _next_timer(self, after: float) -> float | None:
        times = (each._when for each in self._scheduled if not each._cancelled)  # type: ignore[attr-defined]
        return min((each for each in times if each > after), default=None)


def _scene(task: asyncio.Task[Any]) -> tuple[str, str, Place | None]:
    """Return where a task is, what it waits for, and who holds a lock that it waits for."""
    place, called, awaited = None, "", task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        if control.MARK in frame.f_globals:
            place, called = Place(frame.f_code.co_filename, frame.f_lineno, ""), ""
        else:
            called = called or awaited.__qualname__  # type: ignore[union-attr]
        awaited = awaited.cr_await  # type: ignore[union-attr]
    waiter: Any = getattr(task, "_fut_waiter", None)
    if holder := _holders.get(_waits_for.get(task)):
        what = f"waits for a lock that task {holder[0]} holds since line {holder[1].line}"
    elif called or isinstance(waiter, asyncio.tasks._GatheringFuture):  # type: ignore[attr-defined]
        what = f"waits in {called or 'gather'}"
    else:
        who = f"task {waiter.get_name()}" if isinstance(waiter, asyncio.Task) else "a Future that is not done"
        what = f"waits for {who}"
    return f"task {task.get_name()}", what, place


def _unawaited(coroutine: Any) -> None:
    """Note a coroutine that was called and never awaited; Python calls this when it destroys it."""
    (file, line, function), *_ = coroutine.cr_origin or [("", 0, "")]
    message = f"coroutine {coroutine.__qualname__} was never awaited, so that nothing of it was done"
    control.notes.append(Finding("never awaited", message, place=Place(file, line, function)))


_waits_for: dict[asyncio.Task[Any], asyncio.Lock] = {}
_holders: dict[asyncio.Lock | None, tuple[str, Place]] = {}


async def _acquire_and_note(self: asyncio.Lock) -> Any:
    task: Any = asyncio.current_task()
    _waits_for[task] = self
    try:
        await _acquire(self)
    finally:
        del _waits_for[task]
    _holders[self] = (task.get_name(), control.place())
    return True


def _release_and_note(self: asyncio.Lock) -> None:
    _holders.pop(self, None)
    _release(self)


def install() -> None:
    asyncio.sleep = _sleep_in_loop
    time.sleep = sleep  # type: ignore[assignment]
    threading._time = monotonic  # type: ignore[attr-defined]  # of conditions
    for name, epoch in (("monotonic", 0.0), ("perf_counter", 0.0), ("time", EPOCH)):
        setattr(time, name, _virtual(getattr(time, name), epoch, float))
        setattr(time, f"{name}_ns", _virtual(getattr(time, f"{name}_ns"), epoch, lambda seconds: int(seconds * 1e9)))
    warnings._warn_unawaited_coroutine = _unawaited  # type: ignore[attr-defined]
    events.new_event_loop = asyncio.new_event_loop = lambda: Loop(selectors.DefaultSelector())
    asyncio.SelectorEventLoop = Loop
    asyncio.Lock.acquire = _acquire_and_note  # type: ignore[method-assign]
    asyncio.Lock.release = _release_and_note  # type: ignore[method-assign]
