"""What the controlled forms share: the run in progress, the line that called, and whether to control it at all."""

from __future__ import annotations

import ast
import asyncio
import copy
import linecache
import math
import re
import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from itertools import islice
from traceback import walk_stack
from types import FrameType
from typing import Any, NoReturn

from paceline.concurrency.explore.finding import MARK as MARK
from paceline.concurrency.explore.finding import Finding, first_place, of_program
from paceline.concurrency.explore.operation import Mode, Operation, Place, Touch
from paceline.concurrency.explore.scheduler import Run, Task, real_monotonic, real_sleep

#: Modules of the standard library that create threads and locks on behalf of the program.
MODELLED = {"queue", "logging", "logging.handlers", "sched", "socketserver", "asyncio.base_events"} | {
    "concurrent.futures._base",
    "concurrent.futures.thread",
    "multiprocessing.pool",
    "multiprocessing.dummy",
}
SLOW = 0.1  # seconds for which a callback may block its loop, as asyncio has it
_ASSIGNED = re.compile(r"^\s*([\w.\[\]'\"]+)\s*(?::[^=]+)?=[^=]")

shared: dict[int, Any] = {}  # what processes send each other without a copy

#: What asyncio's debug mode would tell: exceptions that no one has read, a loop that is blocked.
notes: list[Finding] = []

#: The run in progress; None before and after one.
run: Run | None = None


def here() -> tuple[Run, Task] | None:
    """Return the run and the task of the thread that calls; None if it is not under control."""
    task = run.current() if run is not None else None
    return (run, task) if run is not None and task is not None else None


def this() -> tuple[Run, Task]:
    """Return the run and the task of a thread that is under control."""
    where = here()
    assert where is not None
    return where


def context() -> Any:
    """Return the process or rank that calls; None where there is only one."""
    where = here()
    return where[1].context if where is not None else None


def rank() -> int | None:
    return getattr(context(), "rank", None)


def is_controlled(depth: int = 2) -> bool:
    """Whether the code that calls is the program's, or creates something on its behalf."""
    if run is None or run.current() is None:
        return False
    names = sys._getframe(depth).f_globals
    return MARK in names or names.get("__name__") in MODELLED or names.get("__package__") == __package__


def refuse(name: str) -> NoReturn:
    """End the run: a verdict would not be known to be true."""
    this()[0].finish(Finding("not supported", f"{name} cannot be explored", place=place()))


class Controlled:
    """A primitive under control; where it is made by code that is not the program's, it is the real one."""

    real: Any
    name = ""
    acquire: Any
    release: Any

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        return super().__new__(cls) if is_controlled() else cls.real(*args, **settings)

    def __deepcopy__(self, memo: Any) -> Any:
        new = memo[id(self)] = object.__new__(type(self))
        new.__dict__ = copy.deepcopy(self.__dict__, memo)
        return new

    def __str__(self) -> str:
        return self.name

    def __enter__(self) -> Any:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Shared(Controlled):
    """What all processes have in common: it is neither copied nor pickled."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        shared[id(self)] = self
        return _received, (id(self),)


def _received(number: int) -> Any:
    return shared[number]


def place() -> Place:
    """Return the line of the program that is being executed."""
    return first_place(walk_stack(sys._getframe(1))) or Place("<python>", 0, "")


def name_of_new(kind: str) -> str:
    """Name an object by the line that creates it: `Lock Pool._lock`, or `Lock of pool.py:12`."""
    frames = [each for each in walk_stack(sys._getframe(1)) if each[0].f_globals.get("__package__") != __package__]
    of_this = list(islice(of_program(frames), 1))
    for frame, line in (*frames[:1], *of_this):
        name = _assigned_name(frame, linecache.getline(frame.f_code.co_filename, line))
        if name.startswith("self.") and "self" in frame.f_locals:
            return f"{kind} {type(frame.f_locals['self']).__name__}.{name[5:]}"
        if name and MARK in frame.f_globals:
            return f"{kind} {name}"
    return f"{kind} of {Place(frame.f_code.co_filename, line, '')}" if of_this else kind


def _assigned_name(frame: FrameType, text: str) -> str:
    """Return what the value that a frame is computing is assigned to in its line: of several values, by the column."""
    assigned = _ASSIGNED.match(text)
    if assigned:
        return assigned[1]
    with suppress(SyntaxError, IndexError):  # a line of several, or none that is known
        statement = ast.parse(text.strip()).body[0]
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple):
            targets = getattr(statement.targets[0], "elts", [])
            column = _column(frame) - (len(text) - len(text.lstrip()))
            for target, value in zip(targets, statement.value.elts, strict=False):
                if value.col_offset <= column < (value.end_col_offset or 0):
                    return ast.unparse(target)
    return ""


def _column(frame: FrameType) -> int:
    """Return the column of the call that a frame is in; -1 before Python 3.11."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return -1
    return next(islice(positions(), frame.f_lasti // 2, None))[2] or 0


def step(
    verb: str,
    subject: object,
    location: Hashable,
    *,
    mode: Mode = "write",
    ready: Callable[[], bool] = lambda: True,
    timeout: float | None = None,
    block: bool = True,
    others: tuple[Touch, ...] = (),
    **rest: Any,
) -> bool:
    """Perform an operation on one object; False if its time ran out first. Without `block` it looks once."""
    where = here()
    if where is None:
        return wait_outside(ready, timeout if block else 0)
    current, task = where
    operation = Operation(
        verb if block else f"tries: {verb}", subject, (Touch(location, mode), *others), place(), **rest
    )
    if not block or (timeout is not None and timeout <= 0):
        current.perform(task, operation)
        return ready()
    operation.ready = ready
    if timeout is not None:
        operation.deadline = current.now + timeout
    if current.perform(task, operation):
        return True
    if timeout is not None and timeout >= SLOW and asyncio._get_running_loop() is not None:
        message = f"{task.name} {verb} {subject} in its event loop: for {timeout:g} s no task of the loop can run"
        notes.append(Finding("blocked loop", message, place=operation.place))
    return False


def wait_outside(ready: Callable[[], bool], timeout: float | None) -> bool:
    """Wait in a thread that is not under control, by polling: the interpreter lock keeps each look consistent."""
    end = math.inf if timeout is None else real_monotonic() + timeout
    while not (is_ready := ready()) and real_monotonic() < end:
        real_sleep(0.001)
    return is_ready


def me() -> int:
    """Return the number of the thread that calls; -1 for one that is not under control."""
    where = here()
    return where[1].number if where else -1


def own_steps() -> int:
    """Return how many steps the thread that calls has made."""
    where = here()
    return where[1].steps if where else 0


def task_name(number: int | None) -> str:
    if number is None or run is None or not 0 <= number < len(run.tasks):
        return "a thread outside the program"
    return run.tasks[number].name
