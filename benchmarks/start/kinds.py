"""Trains twenty kinds of networks by whole commands, as a user types them, under three plans and under `--plan auto`.

Each command is run with an empty cache (cold) and again with what it left there (warm). What is compared is the wall
time of `auto` and that of the fastest of the three; processor seconds are those of all processes, compilers included.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import corpus, in_turn, median, neighbours, spread, table, write

FOLDER = Path(__file__).parent
PLANS = ("sequential", "ring", "downpour", "auto")
SYNCHRONOUS = ("sequential", "ring")  # with the gradients of one process, as auto has
STATES = ("cold", "warm")
SUMMARY = ("plan", "compute", "samples_per_second", "parameters_sha256")
SETTINGS = ("PACELINE_", "PYTHONDONTWRITEBYTECODE")  # of the environment, which would change what is measured
SUBREAPER = 36  # of prctl: orphans become children of this process, which counts their time


def job_files(names: list[str], unseen: bool) -> dict[str, str]:
    """The text of each job file by its kind: those of kinds.txt, or of unseen.txt."""
    known = corpus(FOLDER / "kinds.txt")
    prelude = known.pop("prelude")
    texts = corpus(FOLDER / "unseen.txt") if unseen else known
    if unknown := set(names) - texts.keys():
        raise SystemExit(f"there is no kind {unknown.pop()!r}; there are {', '.join(texts)}")
    return {name: f"{prelude}\n\n{texts[name]}" for name in names or texts}


def train(file: Path, plan: str, cache: Path) -> dict[str, Any]:
    """The seconds and the summary of a command, with this folder as its user's cache."""
    workers = [] if plan == "sequential" else ["--workers", "2"]
    command = [sys.executable, "-m", "paceline", "train", file.name, "--plan", plan, *workers, "--json", "-q"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    environment["XDG_CACHE_HOME"] = str(cache)
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    pipe = subprocess.PIPE
    running = subprocess.Popen(
        command, cwd=file.parent, env=environment, stdout=pipe, stderr=pipe, start_new_session=True
    )
    out, err = running.communicate()
    wall = time.perf_counter() - begin
    if running.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {running.returncode}:\n{err.decode()}")
    while True:  # what was forked ends after the command; neighbours are children, too, of another group
        try:
            os.waitpid(-running.pid, 0)
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    summary = json.loads(out)
    return {"wall": wall, "cpu": cpu, **{name: summary[name] for name in SUMMARY}}


def measure(text: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """The runs of a job by plan and state, in turn; in each round every plan begins with an empty cache."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "job.py"
        file.write_text(text)
        caches = dict.fromkeys(PLANS, folder)

        def run(plan: str, state: str) -> dict[str, Any]:
            if state == "cold":
                caches[plan] = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            return train(file, plan, caches[plan])

        return in_turn({f"{plan} {state}": partial(run, plan, state) for plan in PLANS for state in STATES}, rounds)


def figures(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Of a kind: medians and ranges of each cell, `auto` over the best of others, and whose bits agree."""
    cells = {
        name: {
            **{key: median((run[key] for run in each), 2) for key in ("wall", "cpu", "samples_per_second")},
            "walls": [round(wall, 2) for wall in spread(run["wall"] for run in each)],
            "choice": sorted({f"{run['plan']} {run['compute']}" for run in each}),
        }
        for name, each in runs.items()
    }
    ratios = {}
    for state in STATES:
        for unit in ("wall", "cpu"):
            for name, plans in {"all": PLANS[:-1], "synchronous": SYNCHRONOUS}.items():
                best = min(cells[f"{plan} {state}"][unit] for plan in plans)
                ratios[f"{state} {unit}, {name}"] = round(cells[f"auto {state}"][unit] / best, 2)
    results = {
        plan: len({run["parameters_sha256"] for state in STATES for run in runs[f"{plan} {state}"]}) == 1
        for plan in PLANS
    }
    return {"auto/best": ratios, "same_bits": results, "cells": cells}


def row(kind: str, of_kind: dict[str, Any]) -> list[object]:
    """The kind's line of the table."""
    cells, ratios = of_kind["cells"], of_kind["auto/best"]
    texts: list[object] = [kind]
    for state in STATES:
        texts.append(" · ".join(f"{cells[f'{plan} {state}']['wall']:.1f}" for plan in PLANS))
        texts.append(" · ".join(f"{ratios[f'{state} wall, {name}']:.2f}" for name in ("all", "synchronous")))
    speeds = " · ".join(f"{cells[f'{plan} warm']['samples_per_second']:,.0f}" for plan in PLANS)
    same = ", ".join(plan for plan, is_same in of_kind["same_bits"].items() if is_same)
    return [*texts, speeds, ", ".join(cells["auto warm"]["choice"]), same]


def main() -> None:
    """Print a row for each kind, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unseen", action="store_true", help="the kinds of unseen.txt instead of those of kinds.txt")
    parser.add_argument("--kinds", default="", help="some of them, as in a,b")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, help="cores that another program keeps busy")
    parser.add_argument("--json", type=Path, help="file of the figures")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    plans = " · ".join(PLANS)
    ratio = "auto / best · of synchronous:"
    header = (
        "kind",
        f"cold, s: {plans}",
        ratio,
        f"warm, s: {plans}",
        ratio,
        "samples/s, warm",
        "auto, warm",
        "same bits",
    )
    print(table(header, []), end="", flush=True)
    kinds = {}
    names = [name for name in options.kinds.split(",") if name]
    for kind, text in job_files(names, options.unseen).items():
        with neighbours(options.busy):
            kinds[kind] = figures(measure(text, options.rounds))
        print(table(header, [row(kind, kinds[kind])]).splitlines()[-1], flush=True)
        if options.json:
            record = {"load": os.getloadavg(), "rounds": options.rounds, "busy": options.busy, "kinds": kinds}
            write(record, options.json.name, options.json.resolve().parent, print_path=False)


if __name__ == "__main__":
    main()
