"""Which rank a process is, whatever has started it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.processes import proc
from paceline.concurrency.watcher.processes.interpreter import Standing, read_interpreter
from paceline.concurrency.watcher.processes.objects import LAYOUTS
from paceline.concurrency.watcher.ranks import find_divergence, ranks_of
from paceline.concurrency.watcher.samples import Counters, Frame, Pace, Process, Snapshot, Thread, ThreadWait

pytestmark = pytest.mark.skipif(sys.version_info[:2] not in LAYOUTS, reason="an unknown version of CPython")


def test_the_rank_is_that_of_the_process_group() -> None:
    def group() -> Standing | None:
        found = read_interpreter(os.getpid())
        return found.group if found else None

    assert group() is None
    dist.init_process_group("fake", rank=1, world_size=3, store=FakeStore())
    try:
        assert group() == Standing(1, 3)
    finally:
        dist.destroy_process_group()
    assert group() is None


WAITS = "import time; body = lambda number: time.sleep(600)"
STARTS = {
    "torch/multiprocessing/spawn.py": "def _wrap(fn, i, args, error_file): fn(i, *args)",
    "torch/distributed/elastic/multiprocessing/api.py": "def _wrap(local_rank, fn): fn(local_rank)",
    "paceline/runtime/links/waiting.py": "def wait(ready, start): ready(start)",
}
CALLS = {
    "torch/multiprocessing/spawn.py": "_wrap(body, 5, (), None)",
    "torch/distributed/elastic/multiprocessing/api.py": "_wrap(5, body)",
    "paceline/runtime/links/waiting.py": f"wait(body, {10**17 + 7})",
}


@pytest.mark.parametrize("file", STARTS)
def test_a_process_is_what_its_starter_or_its_wait_has_in_a_variable(file: str, tmp_path: Path) -> None:
    script = tmp_path / file
    script.parent.mkdir(parents=True)
    script.write_text(f"{WAITS}\n{STARTS[file]}\n{CALLS[file]}\n")
    with subprocess.Popen([sys.executable, script]) as started:
        try:
            while (process := proc.snapshot([started.pid]).processes[0]).main.kind != "clock":
                time.sleep(0.01)
        finally:
            started.kill()
    waits = file.startswith("paceline")
    assert (process.rank, process.world_size, process.began) == ((None, 0, 10**17 + 7) if waits else (5, 0, 0))


@pytest.mark.parametrize(
    ("variable", "signals", "handles"),
    [("RANK", "1, 3, 15", False), ("PLACE", "1, 3, 15", True), ("PMI_RANK", "10, 15", False), ("RANK", "10, 15", True)],
)
def test_a_signal_that_launchers_handle_in_ranks_brings_no_rank_to_the_others(
    variable: str, signals: str, handles: bool
) -> None:
    text = f"import signal as s, time; [s.signal(n, lambda *_: exit()) for n in ({signals})]; time.sleep(600)"
    variables = {**os.environ, variable: "1", "WORLD_SIZE": "2", "PMI_SIZE": "2"}
    with subprocess.Popen([sys.executable, "-c", text], env=variables) as started:
        try:
            while proc.caught_signals(started.pid) >> 14 & 1 == 0:
                time.sleep(0.01)
            assert proc.snapshot([started.pid]).processes[0].handles_signals == handles
        finally:
            started.kill()


def rank(pid: int, parent: int, number: int | None, size: int = 2) -> Process:
    stack = (Frame("/torch/distributed/distributed_c10d.py", 9, "barrier"), Frame("/a.py", pid, "main"))
    threads = (Thread(pid, ThreadWait("clock")),)
    return Process(pid, parent, "a.py", threads, rank=number, world_size=size, stacks=(stack,))


def jobs(*processes: Process) -> list[list[int]]:
    return [[each.pid for each in job] for job in ranks_of(Snapshot(0.0, processes))]


def test_a_rank_may_be_the_child_of_another_one_but_no_copy_of_it() -> None:
    worker, helper = rank(30, 20, 0), rank(41, 40, 1)
    shell = Process(40, 21, "sh", ())
    assert jobs(rank(20, 1, 0), rank(21, 20, 1), worker, shell, helper) == [[20, 21]]


def test_two_jobs_of_one_size_are_distinguished_by_what_has_started_them() -> None:
    assert jobs(rank(20, 1, 0), rank(21, 2, 0), rank(22, 1, 1), rank(23, 2, 1)) == [[20, 22], [21, 23]]
    assert jobs(rank(20, 1, 0), rank(22, 2, 1)) == [[20, 22]]


def test_a_rank_without_a_group_belongs_to_the_job_of_its_siblings() -> None:
    assert jobs(rank(20, 1, 0, 2), rank(21, 1, 1, 0)) == [[20, 21]]
    assert jobs(rank(20, 1, 0, 3), rank(21, 1, 1, 0)) == []


@pytest.mark.parametrize(("began", "causes"), [(1_000_000_000, [1]), (0, None)])
def test_a_rank_of_the_backend_waits_as_long_as_its_wait_is_the_same(began: int, causes: list[int] | None) -> None:
    history = History()
    snapshot = Snapshot(0.0, ())
    for at in (0.0, 3.0, 7.0):  # rank 0 is at other lines each time, and runs
        nap = Frame("/paceline/runtime/links/waiting.py", int(at), "nap")
        stack = (nap, Frame("/torch/distributed/distributed_c10d.py", 9, "all_reduce"), Frame("/a.py", 1, "main"))
        runs = (Thread(10, ThreadWait("running")),)
        first = Process(10, 1, "a.py", runs, rank=0, world_size=2, stacks=(stack,), began=began)
        history.add(Counters(at, {10: {10: Pace(int(at * 1e8), 0, int(at))}, 21: {21: Pace(0, 0, 0)}}, {}))
        snapshot = Snapshot(at, (first, rank(21, 1, 1)))
        history.observe(snapshot)
    found = find_divergence(snapshot, history)
    assert (found and [each.rank for each in found.cause]) == causes


WORLDS = {
    "spawn, gloo": """
def work(index, count, how):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=how)
    dist.init_process_group("gloo", rank=index, world_size=count)
    body(index)

if __name__ == "__main__":
    mp.spawn(work, args=(2, PORT), nprocs=2)
""",
    "fork": """
def work(index, count, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=index, world_size=count)
    body(index)

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=work, args=(each, 2, STORE)) for each in range(2)]
    [each.start() for each in started]
    [each.join() for each in started]
""",
}
WORLDS["spawn, paceline"] = "import paceline.runtime.backend\n" + WORLDS["spawn, gloo"].replace('"gloo"', '"paceline"')
BODY = """
import multiprocessing, os, threading
import torch, torch.distributed as dist, torch.multiprocessing as mp

def body(number):
    total = torch.ones(1)
    for step in range(5):
        if number == 1 and step == 3:
            threading.Event().wait()
        dist.all_reduce(total)
"""


@pytest.mark.soak
@pytest.mark.parametrize("world", WORLDS)
def test_ranks_that_hang_are_noticed_whatever_has_started_them(world: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = tmp_path / "train.py"
    script.write_text(f"STORE, PORT = {str(tmp_path / 'store')!r}, {str(port)!r}\n{BODY}{WORLDS[world]}")
    command = [sys.executable, "-m", "paceline", "watch", "--json", "--kill-after", "0", "--", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    processes = json.loads(done.stdout)["reports"][0]["processes"]
    assert [(each["label"].partition(",")[0], each["role"]) for each in processes] == [
        ("rank 1", "cause"),
        ("rank 0", "victim"),
    ]
