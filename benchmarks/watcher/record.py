"""Run programs under the watcher and record what it observes.

`python record.py FOLDER [FAMILY[.PROGRAM]...]` writes one trace for each program and each of `--variants 0,1`. What
hangs is ended some seconds after it was reported, other programs after `--seconds`. What has a trace in the folder is
not recorded again, so that an interrupted run is continued by the same command; with `--within` no recording begins
that could last longer than so many seconds from the start. `--python` runs the programs, not the watcher.

Each trace has, besides the snapshots that the watcher took for reasons of its own, two that are taken in any case, so
that the classifier also learns what busy programs look like.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from catalogue import STOPPED, TORCHRUN, VERDICT, names_of, start

from paceline.concurrency.watcher.files import FILE
from paceline.concurrency.watcher.processes import proc
from paceline.concurrency.watcher.processes.stacks import environment
from paceline.concurrency.watcher.watch import Watch, pace

SNAPSHOTS = (10, 15)
HANGS, WORKS, AFTER = 60.0, 30.0, 3.0  # seconds for programs that hang, for others, and after a report
RANKS = 100.0  # they take long to import PyTorch


def duration(family: str, seconds: float | None) -> float:
    """Return for how long a program is recorded at most."""
    return (seconds or (HANGS if hangs(family) else WORKS)) + (family in TORCHRUN) * (RANKS - HANGS)


def hangs(family: str) -> bool:
    """Whether a report is wanted."""
    return VERDICT[family] == "deadlocked" or family in STOPPED


def record(folder: Path, family: str, name: str, variant: int, seconds: float, python: str) -> None:
    """Record one program for some seconds, and end it."""
    place = folder / f"{family}.{name}.{variant}"
    with tempfile.TemporaryDirectory() as scratch:
        variables = {"OMP_NUM_THREADS": "1", "VARIANT": str(variant), "TMPDIR": scratch}
        variables = environment(Path(scratch), {**os.environ, **variables})
        started = start(family, name, variant, variables, python)
        watch = Watch(started.pid, Path(scratch), keep=None)
        follow(watch, seconds, hangs(family), started.pid)
        watch.kill()
        started.wait()
    place.mkdir(parents=True, exist_ok=True)
    watch.trace.save(place)


def follow(watch: Watch, seconds: float, ends: bool, pid: int) -> None:
    """Let the watcher tick until the program ends, and take further looks at some ticks.

    With `ends` a report ends it soon after.
    """
    started, tick, told = time.monotonic(), 0, None
    while time.monotonic() < started + seconds and not (told and time.monotonic() > told + AFTER):
        found = watch.tick()
        if watch.ended:
            return
        if found is not None and told is None and ends:
            told = time.monotonic()
        if tick in SNAPSHOTS:
            watch.trace.samples.append(proc.snapshot(proc.tree([pid])))
        tick += 1
        pace(started)


def main() -> None:
    """Record all families, or those that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--variants", default="0")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--within", type=float)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_intermixed_args()
    began = time.monotonic()
    wanted = [
        (family, name, int(variant))
        for variant in given.variants.split(",")
        for each in given.families or VERDICT
        for family, _, only in [each.partition(".")]
        for name in names_of(family)
        if only in ("", name)
    ]
    with ProcessPoolExecutor(given.at_once, get_context("spawn")) as pool:
        for each in [pool.submit(record_if_missing, given, began, *program) for program in wanted]:
            each.result()


def record_if_missing(given: argparse.Namespace, began: float, family: str, name: str, variant: int) -> None:
    """Record a program that has no trace yet, if there is time for it."""
    seconds = duration(family, given.seconds)
    late = given.within is not None and time.monotonic() + seconds > began + given.within
    if not late and not (given.folder / f"{family}.{name}.{variant}" / FILE).exists():
        record(given.folder, family, name, variant, seconds, given.python)


if __name__ == "__main__":
    main()
