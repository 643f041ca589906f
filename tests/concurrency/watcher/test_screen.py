"""The live screen: a row for each process of the tree."""

from __future__ import annotations

import pytest

from paceline.concurrency.watcher import watch
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.samples import Counters, Frame, Pace, Process, Snapshot, Thread, ThreadWait
from paceline.concurrency.watcher.watch import screen


def test_each_process_has_a_row_with_what_it_uses_and_waits_for() -> None:
    stack = ((Frame("/usr/lib/python3.11/queue.py", 3, "get"), Frame("/home/a.py", 7, "work")),)
    waits = Process(10, 1, "a.py", (Thread(10, ThreadWait("lock", (10,), "a lock")),), stacks=stack)
    works = Process(20, 10, "b.py", (Thread(20, ThreadWait("running")), Thread(21, ThreadWait("clock"))))
    outside = Process(30, 1, "c.py", (Thread(30, ThreadWait("clock")),), outside=True)
    history = History()
    for at in (0, 6):
        paces = {10: {10: Pace(0, 0, 1)}, 20: {20: Pace(at * 500_000_000, 0, at), 21: Pace(0, 0, 0)}}
        history.add(Counters(float(at), paces, {}))
    text = screen(history, Snapshot(6.0, (waits, works, outside)), ("waiting", 0.75))
    assert text.splitlines() == [
        "waiting (probability 0.75)",
        "PROCESS        THREADS  CORES  STILL  WAITS FOR  AT",
        "pid 10 (a.py)  1        0.00   6 s    a lock     a.py:7 in work",
        "pid 20 (b.py)  2        0.50          running",
    ]


def test_ticks_that_were_missed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(watch.time, "sleep", slept.append)
    for passed in (0.25, 1.0, 97.5):
        monkeypatch.setattr(watch.time, "monotonic", lambda passed=passed: 5.0 + passed)
        watch.pace(5.0)
    assert slept == [0.75, 1.0, 0.5]
