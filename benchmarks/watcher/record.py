"""Run the programs under the watcher and record what it observes: `python record.py [FAMILY...]`.

Each trace has, besides the looks that the watcher took for reasons of its own, two that are taken in any case, so that
the classifier also learns what busy programs look like.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from programs import RANKS, VERDICT  # noqa: E402

from paceline.watcher import proc  # noqa: E402
from paceline.watcher.stacks import environment  # noqa: E402
from paceline.watcher.watch import Watch, pace  # noqa: E402

TRACES = HERE.parents[1] / "tests" / "watcher" / "traces"
TICKS, RANK_TICKS = 18, 90  # ranks take long to import PyTorch
LOOKS = (10, 15)
AT_ONCE = 6
QUIET = subprocess.DEVNULL


def record(family: str, name: str) -> None:
    """Record one program for some seconds, and end it."""
    ranks = family in RANKS
    launcher = ["torch.distributed.run", "--nproc-per-node", "3", "--standalone", "-m"] if ranks else []
    command = [sys.executable, "-m", *launcher, "programs", family, name]
    with tempfile.TemporaryDirectory() as folder:
        variables = environment(Path(folder), {**os.environ, "OMP_NUM_THREADS": "1"})
        started = subprocess.Popen(command, cwd=HERE, env=variables, stdin=QUIET, stdout=QUIET, stderr=QUIET)
        watch = Watch(started.pid, Path(folder), keep=None)
        follow(watch, RANK_TICKS if ranks else TICKS, () if ranks else LOOKS, started.pid)
        watch.kill()
        started.wait()
    place = TRACES / f"{family}.{name}"
    place.mkdir(parents=True, exist_ok=True)
    watch.trace.save(place)
    sys.stderr.write(f"{place.name}: {len(watch.trace.samples)} samples\n")


def follow(watch: Watch, ticks: int, looks: tuple[int, ...], pid: int) -> None:
    """Let the watcher tick, and take further looks at some ticks."""
    started = time.monotonic()
    for tick in range(ticks):
        found = watch.tick()
        if tick in looks:
            watch.trace.samples.append(proc.look(proc.tree([pid])))
        if found is not None and not looks:
            return
        pace(started, tick + 1)


def main() -> None:
    """Record all families, or those that are named."""
    wanted = sys.argv[1:] or list(VERDICT)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = [
            pool.submit(record, family, name)
            for family in wanted
            for name in importlib.import_module(f"programs.{family}").PROGRAMS
        ]
        for each in done:
            each.result()


if __name__ == "__main__":
    main()
