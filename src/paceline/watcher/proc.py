"""The process tree, read from /proc: nothing is attached to, and nothing in the program changes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from paceline.watcher.samples import Glance, Look, Pace, Process, Thread, Work
from paceline.watcher.waits import Waits

#: SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM: what is sent from outside to wake a program that waits for it. SIGINT is
#: missing because Python always handles it.
WAKING_SIGNALS = sum(1 << number - 1 for number in (1, 10, 12, 14, 15))
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def tree(roots: Iterable[int]) -> tuple[int, ...]:
    """Return the processes and all their descendants that run."""
    found: list[int] = []
    ahead = list(roots)
    while ahead:
        pid = ahead.pop()
        if pid in found or not Path(f"/proc/{pid}").exists():
            continue
        found.append(pid)
        for tid in _numbers(f"/proc/{pid}/task"):
            ahead += map(int, read(f"/proc/{pid}/task/{tid}/children").split())
    return tuple(sorted(found))


def glance(pids: Iterable[int]) -> Glance:
    """Read the counters of processes: one small file for each thread, and two for each process."""
    threads: dict[int, dict[int, Pace]] = {}
    work: dict[int, Work] = {}
    for pid in pids:
        if (fields := _stat(f"/proc/{pid}/stat"))[:1] in ([], ["Z"]):
            continue
        paces = {}
        for tid in _numbers(f"/proc/{pid}/task"):
            numbers = read(f"/proc/{pid}/task/{tid}/schedstat").split()
            if len(numbers) == 3:
                paces[tid] = Pace(*map(int, numbers))
        if paces:
            threads[pid], work[pid] = paces, _work(pid, fields)
    return Glance(time.monotonic(), threads, work)


def look(pids: Iterable[int]) -> Look:
    """Read what every thread of the processes waits for. Costs some hundred times as much as a glance."""
    tree_pids = tuple(pids)
    waits = Waits(tree_pids)
    processes = tuple(p for pid in tree_pids if (p := _process(pid, waits)) is not None)
    return Look(time.monotonic(), processes, time.time())


def _process(pid: int, waits: Waits) -> Process | None:
    fields = _stat(f"/proc/{pid}/stat")
    if not fields or fields[0] == "Z":
        return None
    threads = []
    for tid in _numbers(f"/proc/{pid}/task"):
        state = _stat(f"/proc/{pid}/task/{tid}/stat")
        if state:
            threads.append(Thread(tid, waits.of(pid, tid, state[0])))
    rank, world_size = _rank(pid)
    signals = caught_signals(pid) & WAKING_SIGNALS != 0
    return Process(pid, int(fields[1]), _command(pid), tuple(threads), signals, rank, world_size)


def caught_signals(pid: int) -> int:
    """Return the bit mask of the signals that a process handles itself."""
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16)
    return 0


def read(file: str) -> str:
    """Return a file of /proc, or nothing if its process has ended or belongs to another user."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 65536).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _numbers(folder: str) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    return []


def _stat(file: str) -> list[str]:
    """Return the fields of a stat file from the state on; the name before them may hold blanks and parentheses."""
    return read(file).rpartition(")")[2].split()


def _work(pid: int, stat: list[str]) -> Work:
    counted = dict(line.split(": ") for line in read(f"/proc/{pid}/io").splitlines() if ": " in line)
    faults = int(stat[7]) + int(stat[9]) if len(stat) > 9 else 0
    return Work(faults, int(counted.get("rchar", 0)), int(counted.get("wchar", 0)))


def _command(pid: int) -> str:
    words = [word for word in read(f"/proc/{pid}/cmdline").split("\0") if word]
    script = next((word for word in words[1:] if word.endswith(".py")), "")
    return os.path.basename(script or (words[0] if words else read(f"/proc/{pid}/comm").strip()))


def _rank(pid: int) -> tuple[int | None, int]:
    variables = dict(entry.split("=", 1) for entry in read(f"/proc/{pid}/environ").split("\0") if "=" in entry)
    for rank, size in RANK_VARIABLES:
        if variables.get(rank, "").isdecimal() and variables.get(size, "").isdecimal():
            return int(variables[rank]), int(variables[size])
    return None, 0
