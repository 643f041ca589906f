"""What a thread that hangs waits for, and who holds it, as the variables of real programs name them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.concurrency.watcher.processes import proc
from paceline.concurrency.watcher.processes.objects import LAYOUTS
from paceline.concurrency.watcher.processes.subjects import with_subjects
from paceline.concurrency.watcher.samples import Process, Snapshot, Subject

pytestmark = pytest.mark.skipif(sys.version_info[:2] not in LAYOUTS, reason="an unknown version of CPython")

IMPORTS = "import concurrent.futures, multiprocessing, os, queue, signal, subprocess, sys, threading, time\n"
#: A program whose main thread hangs, what it waits for, and what would end the wait.
PROGRAMS = {
    "lock": ("guard = threading.Lock(); guard.acquire()\nguard.acquire()", "threading.Lock `guard`", "lock"),
    "attribute": (
        "class Store:\n"
        "    def __init__(self): self.guard = threading.Lock()\n"
        "    def add(self): self.guard.acquire(); self.guard.acquire()\n"
        "Store().add()",
        "threading.Lock `Store.guard`", "lock",
    ),
    "item": ("locks = [threading.Lock(), threading.Lock()]\nfor _ in '12':\n    locks[1].acquire()",
             "threading.Lock `locks[1]`", "lock"),
    "closure": ("def outer():\n    gate = threading.Event()\n    def inner(): gate.wait()\n    inner()\nouter()",
                "threading.Event `gate`, not set", "event"),
    "condition": (
        "class Latch:\n"
        "    def __init__(self): self.opened = threading.Condition()\n"
        "    def wait(self):\n        with self.opened: self.opened.wait()\n"
        "Latch().wait()",
        "threading.Condition `Latch.opened`", "condition",
    ),
    "semaphore": ("slots = threading.BoundedSemaphore(2)\nfor _ in range(3): slots.acquire()",
                  "threading.BoundedSemaphore `slots`, 0 of 2 slots", "semaphore"),
    "barrier": (
        "gate = threading.Barrier(4)\n"
        "for _ in '12': threading.Thread(target=gate.wait).start()\n"
        "while gate.n_waiting < 2: pass\n"
        "gate.wait()",
        "threading.Barrier `gate`, 3 of 4 arrived", "barrier",
    ),
    "get": ("jobs = queue.Queue()\njobs.get()", "queue.Queue.get `jobs`, empty", "get"),
    "put": ("jobs = queue.Queue(1)\njobs.put(1)\njobs.put(2)", "queue.Queue.put `jobs`, full with 1", "put"),
    "simple queue": ("jobs = queue.SimpleQueue()\njobs.get()", "queue.SimpleQueue `jobs`", "get"),
    "task_done": ("jobs = queue.Queue()\njobs.put(1)\njobs.join()", "queue.Queue.join `jobs`, 1 unfinished",
                  "task_done"),
    "future": ("answer = concurrent.futures.Future()\nanswer.result()", "Future.result `answer`, pending", "future"),
    "thread": ("t = threading.Thread(target=threading.Event().wait, name='collector'); t.start()\nt.join()",
               "the end of thread collector", "thread"),
    "shared event": ("go = multiprocessing.Event()\ngo.wait()", "multiprocessing.Event `go`, not set", "event"),
    "shared lock": ("guard = multiprocessing.Lock()\nfor _ in '12': guard.acquire()",
                    "multiprocessing.Lock `guard`", "shared lock"),
    "program": ("p = subprocess.Popen(['sleep', '1000'])\np.wait()", r"the end of subprocess.Popen `p` \(pid \d+\)",
                "child"),
}  # fmt: skip


@contextmanager
def running(tmp_path: Path, text: str) -> Iterator[int]:
    script = tmp_path / "program.py"
    script.write_text(IMPORTS + text + "\n")
    with subprocess.Popen([sys.executable, script], cwd=tmp_path, stderr=subprocess.DEVNULL) as started:
        try:
            yield started.pid
        finally:
            for pid in reversed(proc.tree([started.pid])):
                os.kill(pid, signal.SIGKILL)


def explained(pid: int, found: Callable[[Snapshot], bool]) -> Snapshot:
    """Take snapshots until one is as it is to be; the test's own timeout ends what never becomes so."""
    while True:
        snapshot = proc.snapshot(proc.tree([pid]))
        if snapshot.processes and found(snapshot):
            return with_subjects(snapshot, [each.pid for each in snapshot.processes])
        time.sleep(0.02)


def waits(snapshot: Snapshot) -> bool:
    """Whether the main thread of the first process is at the last line of its program."""
    process = snapshot.processes[0]
    return process.main.kind in ("lock", "shared lock", "child") and bool(process.stacks)


def subject(process: Process, name: str = "") -> Subject:
    return next(each for each in process.subjects if each.name == name and (name or each.tid == process.pid))


@pytest.mark.parametrize("kind", PROGRAMS)
def test_what_a_thread_waits_for_is_named_with_its_state(kind: str, tmp_path: Path) -> None:
    text, what, missing = PROGRAMS[kind]
    wanted = what if "\\" in what else re.escape(what)

    def named(snapshot: Snapshot) -> bool:
        found = subject(with_subjects(snapshot, [snapshot.processes[0].pid]).processes[0])
        return re.fullmatch(wanted, found.what) is not None

    with running(tmp_path, text) as pid:
        found = subject(explained(pid, lambda snapshot: waits(snapshot) and named(snapshot)).processes[0])
    assert found.kind == missing
    assert found.text in text


#: A program in which a lock is held, and by whom.
HELD = {
    "a generator": (
        "guard = threading.Lock()\ndef rows():\n    with guard: yield 1\neach = rows(); next(each)\nguard.acquire()",
        r"the suspended generator rows \(program.py:4\)",
    ),
    "a process that was killed": (
        "def takes(): guard.acquire(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('fork')\n"
        "    guard = context.Lock()\n"
        "    worker = context.Process(target=takes, name='loader'); worker.start(); worker.join()\n"
        "    guard.acquire()",
        r"process loader \(pid \d+\), which has ended",
    ),
}


@pytest.mark.parametrize("holder", HELD)
def test_the_holder_of_a_lock_is_named_where_it_is_no_thread_that_runs(holder: str, tmp_path: Path) -> None:
    text, words = HELD[holder]
    with running(tmp_path, text) as pid:
        found = subject(
            explained(
                pid,
                lambda snapshot: (
                    waits(snapshot)
                    and "lock" in snapshot.processes[0].main.kind
                    and snapshot.processes[0].main.kind != "child"
                ),
            ).processes[0]
        )
    assert re.fullmatch(words, found.holder)


FORKS = """
guard, held = threading.Lock(), threading.Event()
def writes():
    with guard:
        held.set()
        time.sleep(HOLDS)
threading.Thread(target=writes, name="writer").start()
held.wait()
if os.fork() == 0:
    with guard: pass
os.wait()
"""


@pytest.mark.parametrize(
    ("seconds", "words"), [("600", "thread writer of pid {}, which"), ("1", "a thread of pid {} at")]
)
def test_a_lock_that_was_copied_by_fork_is_said_to_be_so(seconds: str, words: str, tmp_path: Path) -> None:
    def copied(snapshot: Snapshot) -> bool:
        child = snapshot.processes[-1]
        ended = seconds != "1" or len(snapshot.processes[0].threads) == 1
        return len(snapshot.processes) == 2 and child.main.kind == "lock" and bool(child.stacks) and ended

    with running(tmp_path, FORKS.replace("HOLDS", seconds)) as pid:
        child = explained(pid, copied).processes[-1]
    assert subject(child).holder.startswith(words.format(pid))


def test_a_reentrant_lock_names_its_holder_although_no_block_does(tmp_path: Path) -> None:
    text = """
guard, held = threading.RLock(), threading.Event()
def takes():
    guard.acquire()
    held.set()
    threading.Event().wait()
threading.Thread(target=takes, name="taker").start()
held.wait()
guard.acquire()
"""
    with running(tmp_path, text) as pid:
        process = explained(pid, lambda s: waits(s) and s.processes[0].stacks[0][0].line > 9).processes[0]
    assert subject(process).what == "threading.RLock `guard`"
    assert subject(process).owner == subject(process, "taker").tid
    assert process.main.owners == (subject(process, "taker").tid,)


def test_a_module_that_another_thread_imports_is_named(tmp_path: Path) -> None:
    (tmp_path / "slowplugin.py").write_text("import time\ntime.sleep(600)\n")
    text = """
thread = threading.Thread(target=__import__, args=("slowplugin",), name="loads")
thread.start()
while "slowplugin" not in sys.modules: time.sleep(0.01)
import slowplugin
"""
    with running(tmp_path, text) as pid:
        process = explained(pid, waits).processes[0]
    assert subject(process).what == "the import of slowplugin"
    assert process.main.owners == (subject(process, "loads").tid,)


def test_a_handler_of_a_signal_is_named(tmp_path: Path) -> None:
    text = """
guard = threading.Lock()
def on_alarm(*_):
    with guard: pass
signal.signal(signal.SIGALRM, on_alarm)
signal.alarm(1)
with guard: time.sleep(600)
"""
    with running(tmp_path, text) as pid:
        process = explained(pid, waits).processes[0]
    assert subject(process).handler == "on_alarm, the handler of SIGALRM"
    assert process.main.owners == (process.pid,)
    assert (process.main.timed, process.main.rings) == (True, True)
