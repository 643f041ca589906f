"""Run a command of Paceline and say where its time goes: `python timeline.py train digits`.

Each line is a call, or the first import of a module: when it began, how long it lasted, and how much processor time
this process used meanwhile, all its threads together. Calls within others are indented. The table at the end adds the
calls of a name up, each without those within it.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The calls that are timed: names that a module defines, or imports from another.
CALLS = {
    "paceline.interfaces.cli": "register",
    "paceline.interfaces.cli.options": "open_job",
    "paceline.runtime.engines.workers.process": "fork_early prepare",
    "paceline.training.jobs.loading": "load_job",
    "paceline.runtime.engines.setup": "probe rehearse choose fused_if_possible set_up",
    "paceline.runtime.engines.record": "first_record",
    "paceline.runtime.engines.job_file": "save_job_file",
    "paceline.runtime.engines.local.worker_pool": "WorkerPool.__init__ WorkerPool.start WorkerPool._assignment "
    "start_process WorkerPool._wait_until_ready WorkerPool.watch WorkerPool.end WorkerPool.snapshots WorkerPool.values "
    "WorkerPool.close",
    "paceline.runtime.engines.outcome": "evaluation_of finish",
    "paceline.kernels.build": "library compiler",
    "paceline.kernels.fused": "Fused.draft Fused._compare",
    "paceline.training.gradients.choice": "_seconds",
    "paceline.interfaces.cli.tables": "show_summary show_choice",
    "paceline.interfaces.cli.comparison": "show_comparison",
    "paceline.interfaces.cli.tuning": "show_tuning",
    "paceline.interfaces.api.comparing.compare": "settled time_plans train _write",
    "paceline.interfaces.api.comparing.progress": "Cost.of",
    "paceline.interfaces.api.comparing.timing": "Entrant.time_round",
    "paceline.interfaces.api.planning.following": "follow",
    "paceline.interfaces.api.planning.choose": "open_card planner_for facts_of can_fuse with_finalists glanced "
    "Planner.predictions Planner.explained Planner.split Planner._divided",
    "paceline.interfaces.api.planning.measuring": "measure",
    "paceline.interfaces.api.tuning.tune": "space_of probe choose drive _write",
    "paceline.planning.tuner.trials.choice": "_shapes Forms.seconds _apart Processes.__init__",
    "paceline.planning.tuner.trials.stacked": "Stacked._open Stacked._step Stacked._by_themselves",
    "paceline.runtime.report": "write",
}
#: Modules whose import is timed.
IMPORTS = (
    "torch",
    "paceline.runtime.engines.workers.process_main",
    "paceline.interfaces.api.train",
    "pyarrow",
    "torch.distributed",
    "paceline.interfaces.api.comparing.compare",
    "paceline.interfaces.api.planning.choose",
    "paceline.interfaces.api.tuning.tune",
    "paceline.runtime.report",
    "sympy",
    "torch._dynamo",
)

STARTED = float(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])  # in clock ticks
BEGUN = time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - STARTED / os.sysconf("SC_CLK_TCK"))
rows: list[list[Any]] = []
depth = 0
THIS = os.getpid()


def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call, which notes when it began, and how long it lasted."""

    @functools.wraps(call)
    def noted(*given: Any, **named: Any) -> Any:
        global depth
        row = [depth, name, time.monotonic() - BEGUN, 0.0, 0.0]
        rows.append(row)
        depth += 1
        begun, cpu = time.monotonic(), time.process_time()
        try:
            return call(*given, **named)
        finally:
            depth -= 1
            row[3], row[4] = time.monotonic() - begun, time.process_time() - cpu

    return noted


class Finder(importlib.abc.MetaPathFinder):
    """Wraps what modules define, when they have been imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return where the module is, with a loader that wraps."""
        if name not in CALLS and name not in IMPORTS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            for each in CALLS.get(name, "").split():
                holder = module
                *outer, last = each.split(".")
                for part in outer:
                    holder = getattr(holder, part)
                if hasattr(holder, last):
                    setattr(holder, last, timed(each, getattr(holder, last)))

        spec.loader.exec_module = timed(f"import {name}", exec_module) if name in IMPORTS else exec_module  # type: ignore[method-assign]
        return spec


def show() -> None:
    """Print the timeline to standard error, and write it to the file that TIMELINE names."""
    if os.getpid() != THIS:
        return
    rows.append([0, "exit", time.monotonic() - BEGUN, 0.0, time.process_time()])
    if file := os.environ.get("TIMELINE"):
        Path(file).write_text(json.dumps(rows), encoding="utf-8")
    for level, name, begun, lasted, cpu in rows:
        figures = f"{begun * 1000:8.0f} {lasted * 1000:8.0f} ms {cpu * 1000:8.0f} cpu"
        print(f"{figures}  {'  ' * level}{name}", file=sys.stderr)
    for name, (count, seconds) in sorted(sums().items(), key=lambda item: -item[1][1]):
        print(f"{seconds * 1000:8.0f} ms  {name}{f' x {count}' if count > 1 else ''}", file=sys.stderr)


def sums() -> dict[str, tuple[int, float]]:
    """How often each name was called, and the seconds of its calls without those within them."""
    own, outer = [row[3] for row in rows], list[int]()
    for number, (level, _, _, lasted, _) in enumerate(rows):
        del outer[level:]
        if outer:
            own[outer[-1]] -= lasted
        outer.append(number)
    by_name: dict[str, tuple[int, float]] = {}
    for (_, name, *_), seconds in zip(rows, own, strict=True):
        count, total = by_name.get(name, (0, 0.0))
        by_name[name] = count + 1, total + seconds
    return by_name


if __name__ == "__main__":
    sys.meta_path.insert(0, Finder())
    atexit.register(show)
    sys.path.pop(0)
    from paceline.interfaces.cli import main

    sys.argv[0] = "paceline"
    rows.append([0, "interpreter", 0.0, time.monotonic() - BEGUN, time.process_time()])
    timed("the rest", main)()
