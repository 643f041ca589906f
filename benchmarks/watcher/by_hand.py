"""What py-spy shows of programs that hang and of others: `python by_hand.py PY_SPY [FAMILY...]`; writes by_hand.json.

A user who suspects a hang prints the stacks twice with `py-spy dump`, some seconds apart, and takes a program for
hung if no thread of any of its processes has moved. This does the same, with every pause of `PAUSES`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from catalogue import VERDICT, names_of, start
from harness import write

from paceline.concurrency.watcher.processes import proc
from paceline.concurrency.watcher.processes.stacks import environment

FAMILIES = ("applications", "everyday", "routines", "tending")
STARTED = 12.0  # seconds after which a program does what it is labelled with
PAUSES = (1, 5, 15)  # seconds


def stacks(py_spy: str, root: int) -> list[object]:
    """Return the frames of all threads of a process and its descendants that py-spy can read."""
    found: list[object] = []
    for pid in proc.tree([root]):
        dumped = subprocess.run([py_spy, "dump", "--json", "--pid", str(pid)], capture_output=True, check=False)
        if dumped.returncode == 0:
            found.append([(thread["os_thread_id"], thread["frames"]) for thread in json.loads(dumped.stdout)])
    return found


def look_at(py_spy: str, family: str, name: str) -> dict[int, bool]:
    """Return for each pause whether the stacks were the same after it as before."""
    with tempfile.TemporaryDirectory() as scratch:
        variables = environment(Path(scratch), {**os.environ, "VARIANT": "0", "TMPDIR": scratch})
        started = start(family, name, 0, variables, sys.executable)
        try:
            time.sleep(STARTED)
            before, begun, same = stacks(py_spy, started.pid), time.monotonic(), {}
            for pause in PAUSES:
                time.sleep(max(0.0, begun + pause - time.monotonic()))
                same[pause] = stacks(py_spy, started.pid) == before
            return same
        finally:
            for pid in reversed(proc.tree([started.pid])):
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            started.wait()


def main() -> None:
    """Look at all programs of the families, and print for how many a pause finds no difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("py_spy")
    parser.add_argument("families", nargs="*", default=FAMILIES)
    given = parser.parse_args()
    names = [(family, name) for family in given.families for name in names_of(family)]
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda pair: look_at(given.py_spy, *pair), names))
    table: dict[str, dict[str, int]] = {}
    for (family, _), same in zip(names, seen, strict=True):
        kind = "hang" if VERDICT[family] == "deadlocked" else "do not hang"
        row = table.setdefault(kind, {"programs": 0, **{f"the same after {pause} s": 0 for pause in PAUSES}})
        row["programs"] += 1
        for pause in PAUSES:
            row[f"the same after {pause} s"] += same[pause]
    write(table, "by_hand.json")
    for kind, row in table.items():
        sys.stdout.write(f"{kind:12}" + "  ".join(f"{name}: {count}" for name, count in row.items()) + "\n")


if __name__ == "__main__":
    main()
