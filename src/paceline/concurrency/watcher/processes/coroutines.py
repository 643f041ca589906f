"""The tasks of an event loop of asyncio in another process: where each waits, for what, and which locks it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paceline.concurrency.watcher.processes.objects import CodeFrame, Objects
from paceline.concurrency.watcher.samples import Frame, Stack

#: With more tasks than this, nothing is said of them: they would take too long to read.
_MOST_TASKS = 1000
_TASK, _TASK_LOOP = "_asyncio.Task", 16
#: What the innermost function of asyncio says that a task waits for; by file and function.
_WAITS = {
    ("locks.py", "acquire"): "a lock or semaphore of asyncio",
    ("locks.py", "wait"): "an event or condition of asyncio",
    ("locks.py", "_block"): "a barrier of asyncio",
    ("locks.py", "_wait"): "a barrier of asyncio",
    ("queues.py", "get"): "an item of a queue of asyncio",
    ("queues.py", "put"): "room in a queue of asyncio",
    ("queues.py", "join"): "task_done() for all items of a queue of asyncio",
    ("taskgroups.py", "__aexit__"): "the end of its group of tasks",
    ("taskgroups.py", "_aexit"): "the end of its group of tasks",
    ("tasks.py", "_wait"): "other tasks",
}


class Task(NamedTuple):
    """One task that waits."""

    number: int  # an address, so that it is no thread's
    name: str
    stack: Stack  # the innermost frame first
    on: str  # what it waits for, in words
    owners: tuple[int, ...]  # the tasks that alone can end its wait, where they are known
    timer: str  # the function of asyncio whose timer ends its wait; empty if there is none
    main: bool  # the loop ends with it


class Loop(NamedTuple):
    """An event loop that a thread runs."""

    tasks: tuple[Task, ...]
    ready: bool  # some task can go on at once, or something is set to happen that is not seen here


def read_loop(objects: Objects, frames: Sequence[CodeFrame], modules: int) -> Loop | None:
    """Return the event loop that a thread runs; None if it runs none.

    Args:
        objects: The interpreter.
        frames: The thread's frames, the innermost first.
        modules: The dictionary of the interpreter's modules.
    """
    running = next((each for each in frames if _place(each) == ("base_events.py", "run_forever")), None)
    if running is None:
        return None
    until = next((each for each in frames if _place(each) == ("base_events.py", "run_until_complete")), None)
    main = objects.local(until, "future") if until else 0
    loop = objects.local(running, "self")
    addresses = [each for each in _tasks(objects, modules) if objects.memory.word(each + _TASK_LOOP) == loop]
    if len(addresses) > _MOST_TASKS:
        return Loop((), True)
    waiting = [_Waiting.of(objects, each) for each in addresses]
    at_rest = [each for each in waiting if each is not None]
    holders = {lock: each.number for each in at_rest for lock in each.holds}
    tasks = tuple(each.task(objects, holders, main) for each in at_rest)
    timers = _timers(objects, loop)
    return Loop(tasks, len(at_rest) < len(addresses) or timers > sum(bool(each.timer) for each in tasks))


def _tasks(objects: Objects, modules: int) -> Iterator[int]:
    """Iterate over all tasks that are not done: `asyncio.tasks` has sets of them and of weak references to them."""
    module = objects.items(modules).get("asyncio.tasks")
    if not module:
        return
    variables = objects.items(objects.memory.word(module + 16))
    weak, eager = (variables.get(name, 0) for name in objects.at.every_task)
    references = objects.members(objects.attributes(weak)["data"])
    addresses = [objects.memory.word(each + 16) for each in references] + list(objects.members(eager) if eager else ())
    for task in addresses:
        if objects.type_of(task) == _TASK and objects.memory.integer(task + objects.at.task_state) == 0:
            yield task


def _timers(objects: Objects, loop: int) -> int:
    attributes = objects.attributes(loop)
    scheduled = objects.memory.word(attributes["_scheduled"] + 16)
    return scheduled - max(objects.number(attributes["_timer_cancelled_count"]), 0)


class _Waiting(NamedTuple):
    """A task as it is read, before it is known who holds what."""

    number: int
    frames: tuple[CodeFrame, ...]  # the innermost first
    future: int
    holds: frozenset[int]  # locks

    @classmethod
    def of(cls, objects: Objects, task: int) -> _Waiting | None:
        """Return a task that waits, None for one that does not."""
        future = objects.memory.word(task + objects.at.task_waits_for)
        frames = tuple(objects.suspended(objects.memory.word(task + objects.at.task_coroutine)))[::-1]
        if not future or not frames:
            return None
        locks = {lock for value in _values(objects, frames) if (lock := _held(objects, value))}
        inside = objects.local(frames[0], "self") if _place(frames[0]) == ("locks.py", "wait") else 0
        return cls(task, frames, future, frozenset(locks - {_lock(objects, inside)}))

    def task(self, objects: Objects, holders: Mapping[int, int], main: int) -> Task:
        """Return what the task waits for, given the tasks that hold locks, and the task that the loop ends with."""
        place = _place(self.frames[0])
        owners: tuple[int, ...] = ()
        on = _WAITS.get(place, "what another task or thread is to give")
        if objects.type_of(self.future) == _TASK:
            owners, on = (self.future,), "the end of a task"
        elif place == ("locks.py", "acquire"):
            lock = objects.local(self.frames[0], "self")
            if holder := holders.get(lock, 0):
                owners, on = (holder,), "a lock of asyncio"
        stack = tuple(Frame(each.code.file, each.line, each.code.name) for each in self.frames)
        name = _name(objects, self.number)
        return Task(self.number, name, stack, on, owners, self._timer(objects, place), self.number == main)

    def _timer(self, objects: Objects, place: tuple[str, str]) -> str:
        if place == ("tasks.py", "_wait"):
            handle = objects.local(self.frames[0], "timeout_handle")
            if handle and objects.type_of(handle) == "cell":
                handle = objects.memory.word(handle + 16)
            return "wait" if handle and objects.type_of(handle) == "TimerHandle" else ""
        if place == ("tasks.py", "sleep"):
            return "sleep"
        return "wait_for" if any(_place(each) == ("tasks.py", "wait_for") for each in self.frames) else ""


def _values(objects: Objects, frames: Sequence[CodeFrame]) -> Iterator[int]:
    """Iterate over the values on the stacks of frames, but for the `__aexit__` of a block that is being entered."""
    inside = ("", "")
    for each in frames:
        yield from objects.values(each)[: -2 if inside == ("locks.py", "__aenter__") else None]
        inside = _place(each)


def _held(objects: Objects, value: int) -> int:
    """Return the lock of which a value is the bound `__aexit__`, 0 if it is none."""
    if not value or objects.type_of(value) != "method":
        return 0
    return _lock(objects, objects.receiver(value))


def _lock(objects: Objects, instance: int) -> int:
    """Return the lock that an instance is, or that a condition has; 0 for anything else."""
    if not instance or objects.type_of(instance) not in ("Lock", "Condition"):
        return 0
    attributes = objects.attributes(instance)
    if "_waiters" not in attributes:
        return 0
    return attributes.get("_lock", instance)


def _place(frame: CodeFrame) -> tuple[str, str]:
    """Return file and function of a frame of asyncio; empty for any other."""
    folder, file = os.path.split(frame.code.file)
    return (file, frame.code.name) if folder.endswith("/asyncio") else ("", "")


def _name(objects: Objects, task: int) -> str:
    name = objects.memory.word(task + objects.at.task_name)
    if objects.type_of(name) == "int":  # the name is made of it when it is asked for
        return f"task Task-{objects.number(name)}"
    return f"task {objects.string(name)}" if objects.type_of(name) == "str" else "a task"
