"""What watching costs: `python cost.py [--pairs 12] [--seconds 4]`; writes cost.json. The machine should be quiet.

Two programs run all the time: one computes in one thread, the other has 16 processes of 20 threads of which each counts
to a thousand and sleeps for 20 ms. They are watched for some seconds and then not, by turns that begin with either;
noted are how much work they do in each, and the processor time that the watcher takes. Between, the watcher is stopped.
Work of the program that computes is counted by the second of its own processor time, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import read, write

SETTLING = 12.0  # seconds after the watcher was started, in which it imports its modules and takes its first snapshots
WATCHED = 24.0  # seconds in which it runs all the time, for its processor time
COMPUTES = """
import mmap, struct, sys
with open(sys.argv[1], "r+b") as file:
    counter = mmap.mmap(file.fileno(), 0)
done = 0
while True:
    sum(range(10_000))
    done += 1
    struct.pack_into("=Q", counter, 0, done)
"""
MANY_THREADS = """
import mmap, os, struct, sys, threading, time
with open(sys.argv[1], "r+b") as file:
    counter = mmap.mmap(file.fileno(), 0)
number = 0
for each in range(1, 16):
    if os.fork() == 0:
        number = each
        break
def work(at):
    done = 0
    while True:
        sum(range(1000))
        done += 1
        struct.pack_into("=Q", counter, 8 * at, done)
        time.sleep(0.02)
threads = [threading.Thread(target=work, args=(20 * number + at,)) for at in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(text: str, pairs: int, seconds: float, computes: bool) -> dict[str, object]:
    """Return what a program does in a second while it is watched and while it is not, and what the watcher takes."""
    with tempfile.NamedTemporaryFile() as shared:
        shared.write(bytes(8 * 320))
        shared.flush()
        counter = mmap.mmap(shared.fileno(), 0)
        program = subprocess.Popen([sys.executable, "-c", text, shared.name], start_new_session=True)
        time.sleep(3)
        watcher = subprocess.Popen([sys.executable, "-m", "paceline", "watch", "--pid", str(program.pid)])
        ratios, took = [], 0.0
        try:
            time.sleep(SETTLING)
            for pair in range(pairs):
                work = {}
                for watched in (pair % 2 == 0, pair % 2 == 1):
                    os.kill(watcher.pid, signal.SIGCONT if watched else signal.SIGSTOP)
                    work[watched] = _in_a_second(counter, seconds, program.pid if computes else None)
                ratios.append(work[True] / work[False])
            os.kill(watcher.pid, signal.SIGCONT)
            begun = cpu_seconds(watcher.pid)
            time.sleep(WATCHED)
            took = (cpu_seconds(watcher.pid) - begun) / WATCHED
        finally:
            os.killpg(program.pid, signal.SIGKILL)
            watcher.kill()
            program.wait()
            watcher.wait()
    if pairs < 2:
        return {"of a core for the watcher": round(took, 4)}
    return {
        "work when watched, of that when not": [round(each, 4) for each in ratios],
        "mean": round(statistics.mean(ratios), 4),
        "standard error": round(statistics.stdev(ratios) / pairs**0.5, 4),
        "of a core for the watcher": round(took, 4),
    }


def _in_a_second(counter: mmap.mmap, seconds: float, pid: int | None) -> float:
    """Return the work in a second: of the processor time of a process, or of the clock."""
    begun, done = _now(pid), _total(counter)
    time.sleep(seconds)
    return (_total(counter) - done) / (_now(pid) - begun)


def _now(pid: int | None) -> float:
    return time.monotonic() if pid is None else int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _total(counter: mmap.mmap) -> int:
    return sum(struct.unpack("=320Q", counter[:]))


def main() -> None:
    """Measure both programs, or the one that is named."""
    parser = argparse.ArgumentParser()
    programs = {"computes": COMPUTES, "16 processes of 20 threads": MANY_THREADS}
    parser.add_argument("programs", nargs="*", default=list(programs))
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    found = read("cost.json").get("programs", {})
    for name in given.programs:
        found[name] = found.get(name, {}) | measured(programs[name], given.pairs, given.seconds, name == "computes")
        write({"programs": found}, "cost.json", print_path=False)
        sys.stdout.write(f"{name}: {found[name]}\n")


if __name__ == "__main__":
    main()
