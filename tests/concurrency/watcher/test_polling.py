"""Which loops only ask, by their source; and when such a loop is a hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.concurrency.watcher.graph import find_knot
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.judge import judge
from paceline.concurrency.watcher.polling import PollingLoop, loop_of
from paceline.concurrency.watcher.processes import proc
from paceline.concurrency.watcher.samples import (
    Counters,
    Frame,
    Pace,
    Process,
    Snapshot,
    Thread,
    ThreadWait,
    snapshot_from,
    to_json,
)
from tests.each import each

# --- The end of a pipe that something in the background keeps open after the child has ended --------------------------

#: What a shell leaves in the background, and whether it is never meant to end.
LEFT = {
    "sleep infinity": True,
    f"{sys.executable} -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 0)); s.accept()'": True,
    f"{sys.executable} -c 'import time; time.sleep(10 ** 8)'": True,
    "sleep 600": False,
    f"{sys.executable} -c 'while True: pass'": False,
}


@pytest.mark.parametrize("command", LEFT)
def test_what_is_left_in_the_background_and_does_not_end_keeps_the_pipe_open(command: str, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    text = f"import subprocess; subprocess.run({f'{command} & echo $! > {numbers}'!r}, shell=True, capture_output=True)"
    with subprocess.Popen([sys.executable, "-c", text]) as started:
        try:
            holder = holder_when_the_child_has_ended(started.pid, numbers)
            process = snapshot_until(started.pid, lambda found: found.main.kept if LEFT[command] else settled(found))
        finally:
            started.kill()
            if numbers.exists() and numbers.read_text().strip():
                os.kill(int(numbers.read_text()), signal.SIGKILL)
    assert process.main.kept == LEFT[command]
    assert process.main.by == (() if LEFT[command] else (holder,))
    assert (find_knot(Snapshot(0.0, (process,)), lambda pid, tid: True) is not None) == LEFT[command]
    if LEFT[command]:
        assert f"kept open by pid {holder} (" in process.main.on


def settled(process: Process) -> bool:
    """Whether a process is seen to wait for the holder of its pipe: one that has just been forked is seen later."""
    return process.main.kind == "pipe" and process.main.by != ()


def snapshot_until(pid: int, found: Callable[[Process], bool]) -> Process:
    """Take snapshots until one is as it is to be; the test's own timeout ends what never becomes so."""
    while not found(process := proc.snapshot([pid]).processes[0]):
        time.sleep(0.02)
    return process


def holder_when_the_child_has_ended(pid: int, numbers: Path) -> int:
    while not (numbers.exists() and numbers.read_text().strip() and "Z" in states(pid)):
        time.sleep(0.02)
    return int(numbers.read_text())


def states(pid: int) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return "".join(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] for each in children)


TAKES = PollingLoop(asks=True, file_lock=False, takes=True)
ASKS, IDLES = PollingLoop(asks=True, file_lock=False), PollingLoop(asks=False, file_lock=False)

LOOPS = {
    "a flag": ("while not done:\n    time.sleep(1)", ASKS),
    "a queue, with work for what comes": (
        "while True:\n    try:\n        item = items.get(timeout=1)\n    except E:\n        continue\n    use(item)",
        TAKES,
    ),
    "a lock": ("while True:\n    if lock.acquire(timeout=1):\n        use()\n        break", TAKES),
    "a child": ("while child.poll() is None:\n    print('waits')\n    time.sleep(1)", ASKS),
    "a file lock": (
        "while True:\n    try:\n        flock(file, NB)\n        break\n    except OSError:\n        time.sleep(1)",
        PollingLoop(asks=True, file_lock=True),
    ),
    "nothing": ("while True:\n    time.sleep(1)", IDLES),
    "nothing, and prints": ("while True:\n    print('alive')\n    time.sleep(1)", IDLES),
    "a lock that is kept now and then": ("while not done:\n    with lock:\n        time.sleep(1)", None),
    "a producer": ("while True:\n    time.sleep(1)\n    items.put(1)", None),
    "a consumer": ("while True:\n    time.sleep(1)\n    items.get()", TAKES),
    "work in between": ("while True:\n    time.sleep(1)\n    collect()", None),
    "work when nothing comes": (
        "while True:\n    try:\n        items.get(timeout=1)\n    except Empty:\n        collect()",
        None,
    ),
    "a file": ("while not path.exists():\n    time.sleep(1)", None),
    "a deadline": ("while time.monotonic() < deadline:\n    time.sleep(1)", None),
    "so many attempts": ("while tries < 100:\n    tries += 1\n    time.sleep(1)", None),
    "a property": ("while job.state != 'done':\n    time.sleep(1)", None),
    "no loop": ("time.sleep(1000)", None),
    "a number of rounds": ("for number in range(100):\n    time.sleep(1)", None),
    "no source": ("", None),
    "no Python": ("while (true) { sleep(1); }", None),
}


@each("name", LOOPS)
def test_a_loop_only_asks_if_every_call_in_it_is_known(name: str) -> None:
    text, wanted = LOOPS[name]
    lines = text.splitlines()
    line = next((at for at, each in enumerate(lines, 1) if "sleep" in each or "timeout" in each or "flock" in each), 1)
    assert loop_of((Frame("a.py", line, "<module>"),), lambda _: text) == wanted


def test_a_function_that_only_asks_belongs_to_the_loop_of_its_caller() -> None:
    text = "def pause():\n    time.sleep(1)\nwhile not done:\n    {}()\n"
    stack = (Frame("a.py", 2, "pause"), Frame("a.py", 4, "<module>"))
    assert loop_of(stack, lambda _: text.format("pause")) is None  # the caller calls what is not known by its name
    assert loop_of(stack, lambda _: text.format("sleep")) == ASKS


def test_an_attribute_is_data_only_if_the_same_file_assigns_it() -> None:
    loop = "while not self.done:\n    time.sleep(1)\n"
    stack = (Frame("a.py", 2, "<module>"),)
    assert loop_of(stack, lambda _: loop + "self.done = False\n") == ASKS
    assert loop_of(stack, lambda _: loop + "self.done = False\ndef done(self): pass\n") is None


def asks(*by: int) -> ThreadWait:
    return ThreadWait("clock", by, "what its loop asks for", polls="asks")


def process(*waits: ThreadWait, **more: Any) -> Process:
    return Process(10, 1, "a.py", tuple(Thread(10 + number, wait) for number, wait in enumerate(waits)), **more)


def hangs(*waits: ThreadWait, still: tuple[int, ...] = (), **more: Any) -> bool:
    snapshot = Snapshot(0.0, (process(*waits, **more),))
    return find_knot(snapshot, lambda _, tid: tid in still, polls=lambda _, tid: tid not in still) is not None


def test_who_asks_hangs_unless_another_thread_may_answer() -> None:
    assert hangs(asks(10))
    assert hangs(asks(10), asks(10), ThreadWait("lock", (10,)), still=(12,))
    assert not hangs(asks(10), ThreadWait("clock"))
    assert not hangs(asks(10), ThreadWait("outside"))
    assert not hangs(asks(10, 99))
    assert not hangs(asks(10), handles_signals=True)


def test_a_thread_that_only_sleeps_and_prints_answers_nobody_but_is_no_hang_itself() -> None:
    idles = ThreadWait("clock", polls="idles")
    joins = ((Frame("threading.py", 1, "wait"), Frame("/lib/python3.11/queue.py", 9, "join")),)
    keeps_alive = ((Frame("threading.py", 1, "wait"), Frame("threading.py", 2, "wait"), Frame("/a.py", 9, "main")),)
    assert hangs(ThreadWait("lock", (10,)), idles, still=(10,), stacks=joins)
    assert not hangs(ThreadWait("lock", (10,)), idles, still=(10,), stacks=keeps_alive)
    assert not hangs(idles)
    assert not hangs(ThreadWait("lock", (10,), "the end of a thread", owners=(11,)), idles, still=(10,))


def seen(runs: int, ran: int, seconds: float) -> bool:
    """Judge a program that asks, of which a snapshot was taken every second."""
    history, before, found = History(), None, None
    for at in range(int(seconds) + 1):
        history.add(Counters(float(at), {10: {10: Pace(ran * at, 0, runs * at)}}, {}))
        snapshot = Snapshot(float(at), (process(asks(10)),))
        history.observe(snapshot)
        found = judge(history, snapshot, before)
        before = snapshot
    assert found is None or (found.verdict, found.processes[0].role) == ("livelocked", "cause")
    return found is not None


def test_it_is_said_after_several_snapshots_and_only_of_what_wakes_for_a_short_time() -> None:
    assert seen(runs=5, ran=200_000, seconds=8)
    assert not seen(runs=5, ran=200_000, seconds=4)
    assert not seen(runs=5, ran=20_000_000, seconds=8)


def test_what_was_asked_before_another_thread_ran_may_have_been_answered_by_it() -> None:
    """A process that sleeps for long between two rounds of a barrier: all passed the last one together."""

    def barrier(runs: dict[int, int]) -> bool:
        history, before, found = History(), None, None
        for at in range(17):
            count = sum(number for second, number in runs.items() if second <= at)
            paces = {10: Pace(0, 0, count), 11: Pace(0, 0, int(at >= 7))}
            history.add(Counters(float(at), {10: paces}, {}))
            snapshot = Snapshot(float(at), (process(asks(10), ThreadWait("shared lock", (10,))),))
            history.observe(snapshot)
            found = judge(history, snapshot, before)
            before = snapshot
        return found is not None

    assert not barrier({7: 3})
    assert barrier({7: 3, 10: 1, 13: 1})


def test_what_asks_is_kept_in_a_trace() -> None:
    snapshot = Snapshot(1.0, (process(asks(10)),))
    assert snapshot_from(to_json(snapshot)) == snapshot
