"""Other versions of Python than the one that runs the tests, as far as this machine has them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.concurrency.watcher.processes import proc
from paceline.concurrency.watcher.processes.interpreter import _LIBRARY
from paceline.concurrency.watcher.processes.objects import LAYOUTS
from paceline.concurrency.watcher.samples import Snapshot

PROGRAM = """
import asyncio, threading

class Account:
    def __init__(self):
        self.lock = threading.Lock()

def move(source, target):
    with source.lock:
        both.wait()
        with target.lock:  # line 11
            pass

def loop():
    async def take(first, second):
        async with first:
            await asyncio.sleep(0.05)
            async with second:  # line 18
                pass

    async def main():
        here, there = asyncio.Lock(), asyncio.Lock()
        tasks = [asyncio.create_task(take(here, there), name="one"), asyncio.create_task(take(there, here))]
        await asyncio.wait(tasks)

    asyncio.run(main())

a, b, both = Account(), Account(), threading.Barrier(2)
threads = [threading.Thread(target=move, args=each) for each in ((a, b), (b, a))] + [threading.Thread(target=loop)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def python(version: tuple[int, int]) -> str | None:
    """Return an interpreter of a version, on PATH or beside the one that runs the tests."""
    name = f"python{version[0]}.{version[1]}"
    beside = (str(path) for path in Path(sys.base_prefix).parent.glob(f"*/bin/{name}"))
    found = [each for each in (shutil.which(name), *beside) if each]
    works = (
        each for each in found if subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0
    )
    return next(works, None)


@contextmanager
def running(version: tuple[int, int], tmp_path: Path) -> Iterator[int]:
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with subprocess.Popen([interpreter, script]) as started:
        try:
            yield started.pid
        finally:
            started.kill()


def snapshot_when_four_hold_each_other(pid: int) -> Snapshot:
    """Look until two threads and two tasks have owners; the test's own timeout ends what never becomes so."""
    while True:
        snapshot = proc.snapshot([pid])
        if sum("a lock" in thread.wait.on and thread.wait.owners != () for _, thread in snapshot.threads()) == 4:
            return snapshot
        time.sleep(0.02)


@pytest.mark.parametrize("version", LAYOUTS)
def test_threads_and_tasks_of_a_known_version_are_read(version: tuple[int, int], tmp_path: Path) -> None:
    with running(version, tmp_path) as pid:
        process = snapshot_when_four_hold_each_other(pid).processes[0]
    owners = {each.tid: each.wait.owners for each in process.threads}
    names = {each.task for each in process.threads} - {""}
    assert names == {"task Task-1", "task one", *(name for name in names if re.fullmatch(r"task Task-\d", name))}
    held = [each for each in process.threads if "a lock" in each.wait.on]
    assert all(owners[each.wait.owners[0]] == (each.tid,) for each in held)
    lines = [next(f.line for f in process.stack_of(each.tid) if f.file.endswith("program.py")) for each in held]
    assert sorted(lines) == [11, 11, 18, 18]
    assert process.main.on == "the end of a thread"
    assert process.main.owners[0] in owners


@pytest.mark.parametrize("version", [(3, 8), (3, 9), (3, 10), (3, 14)])
def test_of_an_unknown_version_only_what_the_kernel_says_is_known(version: tuple[int, int], tmp_path: Path) -> None:
    with running(version, tmp_path) as pid:
        while not (processes := proc.snapshot([pid]).processes) or len(processes[0].threads) < 4:
            time.sleep(0.02)
        time.sleep(0.5)
        process = proc.snapshot([pid]).processes[0]
    assert process.stacks == ()
    assert process.main.kind == "lock"
    assert {each.task for each in process.threads} == {""}


def test_a_build_without_the_interpreter_lock_is_unknown() -> None:
    known = {
        path: bool(_LIBRARY.search(path))
        for path in (
            "/usr/bin/python3.13",
            "/usr/lib/libpython3.13.so.1.0",
            "/usr/bin/python3.13t",
            "/lib/libpython3.13t.so.1.0",
            "/usr/bin/python3.11d",
        )
    }
    assert list(known.values()) == [True, True, False, False, False]
