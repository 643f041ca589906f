"""Tasks of asyncio, as they are read from the memory of a program that runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.concurrency.watcher.graph import find_knot
from paceline.concurrency.watcher.processes import proc
from paceline.concurrency.watcher.processes.objects import LAYOUTS
from paceline.concurrency.watcher.samples import Snapshot, Thread

pytestmark = pytest.mark.skipif(sys.version_info[:2] not in LAYOUTS, reason="an unknown version of CPython")

#: Two tasks that take two locks in two orders, two that wait for each other's end, one that takes a lock twice.
HANGS = """
import asyncio

async def beat():
    while True:
        await asyncio.sleep(0.2)

async def both(first, second):
    async with first:
        await asyncio.sleep(0.05)
        async with second:  # line 11
            pass

async def twice(condition):
    async with condition:
        async with condition:  # line 16
            pass

async def until(name, other):
    await asyncio.sleep(0.05)
    await tasks[other]  # line 21

async def main():
    a, b = asyncio.Lock(), asyncio.Lock()
    asyncio.create_task(beat(), name="beat")
    tasks.update(ab=asyncio.create_task(both(a, b), name="ab"), ba=asyncio.create_task(both(b, a), name="ba"),
                 two=asyncio.create_task(twice(asyncio.Condition()), name="two"),
                 here=asyncio.create_task(until("here", "there"), name="here"),
                 there=asyncio.create_task(until("there", "here"), name="there"))
    await asyncio.wait(tasks.values())

tasks = {}
asyncio.run(main())
"""
#: A task in `wait` of a condition does not hold its lock, and one whose lock waits for the outside is no deadlock.
WORKS = """
import asyncio, signal

async def watches(condition):
    async with condition:
        await condition.wait()

async def changes(condition, slow):
    async with condition:
        async with slow:
            await asyncio.sleep(600)

async def main():
    condition, slow, stop = asyncio.Condition(), asyncio.Lock(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    tasks = [asyncio.create_task(watches(condition), name="watches")]
    await asyncio.sleep(0.05)
    tasks.append(asyncio.create_task(changes(condition, slow), name="changes"))
    await asyncio.sleep(0.05)
    tasks.append(asyncio.create_task(changes(condition, slow), name="queues"))
    await stop.wait()

asyncio.run(main())
"""
SIGNALLED = """
import asyncio, signal

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()

asyncio.run(main())
"""


@contextmanager
def running(tmp_path: Path, text: str) -> Iterator[int]:
    script = tmp_path / "program.py"
    script.write_text(text)
    with subprocess.Popen([sys.executable, script]) as started:
        try:
            yield started.pid
        finally:
            started.kill()


def look_until(pid: int, found: Callable[[dict[str, Thread]], bool]) -> Snapshot:
    """Take snapshots until the tasks are as they are to be; the test's timeout ends what never becomes so."""
    while True:
        snapshot = proc.snapshot([pid])
        if snapshot.processes and found({each.task: each for each in snapshot.processes[0].threads if each.task}):
            return snapshot
        time.sleep(0.05)


def test_tasks_that_hold_each_other_up_are_found_while_their_loop_goes_on(tmp_path: Path) -> None:
    wanted = {"task ab", "task ba", "task two", "task here", "task there"}

    def all_wait(tasks: dict[str, Thread]) -> bool:
        waiting = {name for name, each in tasks.items() if each.wait.owners}
        return waiting == wanted and tasks["task beat"].wait.polls == "idles"  # not in its step

    with running(tmp_path, HANGS) as pid:
        snapshot = look_until(pid, all_wait)
    (process,) = (each for each in snapshot.processes if not each.outside)
    tasks = {each.task: each for each in process.threads if each.task}
    names = {each.tid: each.task for each in tasks.values()}
    holders = {name: names[tasks[name].wait.owners[0]] for name in wanted}
    assert holders == {
        "task ab": "task ba",
        "task ba": "task ab",
        "task two": "task two",
        "task here": "task there",
        "task there": "task here",
    }
    lines = {name: next(f.line for f in process.stack_of(tasks[name].tid) if "program" in f.file) for name in wanted}
    assert lines == {"task ab": 11, "task ba": 11, "task two": 16, "task here": 21, "task there": 21}
    knot = find_knot(snapshot, still=lambda pid, tid: False)
    assert knot is not None
    assert {names[tid] for tid in knot.threads} == wanted
    assert set(map(names.get, knot.core)) < wanted


@pytest.mark.parametrize("program", [WORKS, SIGNALLED])
def test_tasks_that_a_timer_or_a_signal_wakes_are_no_deadlock(program: str, tmp_path: Path) -> None:
    def all_wait(tasks: dict[str, Thread]) -> bool:
        waits = {name: each.wait for name, each in tasks.items()}
        if program == SIGNALLED:
            return any("event" in each.on for each in waits.values())
        return waits.keys() >= {"task queues"} and waits["task queues"].owners != ()

    with running(tmp_path, program) as pid:
        snapshot = look_until(pid, all_wait)
    assert find_knot(snapshot, still=lambda pid, tid: True) is None
    tasks = {each.task: each for each in snapshot.processes[0].threads if each.task}
    if program == WORKS:
        assert tasks["task queues"].wait.owners == (tasks["task changes"].tid,)
        assert tasks["task watches"].wait.owners == ()


def test_processes_that_open_named_pipes_in_two_orders_wait_for_each_other(tmp_path: Path) -> None:
    for name in ("there", "back"):
        os.mkfifo(tmp_path / name)
    text = "import os; names = ['there', 'back']\nfor n in names if os.fork() else names[::-1]: open(n, 'w')"
    with subprocess.Popen([sys.executable, "-c", text], cwd=tmp_path) as started:
        try:
            snapshot = proc.snapshot([])
            while [each.main.kind for each in snapshot.processes] != ["pipe", "pipe"]:
                snapshot = proc.snapshot(proc.tree([started.pid]))
                time.sleep(0.05)
            knot = find_knot(snapshot, still=lambda pid, tid: True)
            assert knot is not None
            assert len(knot.circle) == 2
            # A process alone may wait for any other of the machine.
            assert {each.main.kind for each in proc.snapshot([started.pid]).processes} == {"outside"}
        finally:
            for pid in reversed(proc.tree([started.pid])):
                os.kill(pid, 9)
