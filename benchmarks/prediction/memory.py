"""The memory of workers, measured, and the coefficients of `paceline.planning.planner.memory` fitted to it.

python benchmarks/prediction/memory.py                  measure the cases that memory.jsonl lacks
python benchmarks/prediction/memory.py --minutes 5      the same, and begin no other job after so many minutes
python benchmarks/prediction/memory.py --fit            print coefficients fitted to the calibration jobs
python benchmarks/prediction/memory.py --sum-up         print errors, of fitted and of unseen jobs apart

Coefficients are fitted to the jobs on which cards are fitted; the ten jobs of jobs.py are judged and not fitted.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jobs import JOBS
from scipy.optimize import nnls

from paceline.errors import PacelineError
from paceline.interfaces.api.planning.calibration_jobs import calibration_job
from paceline.interfaces.api.planning.dividing import Divider
from paceline.interfaces.api.planning.measuring import measure
from paceline.planning.planner import memory
from paceline.planning.planner.facts import ModelDivision
from paceline.planning.planner.model_cost import ModelCost, cost_of
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan
from paceline.training.jobs.job import Job

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import add_line, lines_of, table

KEPT = Path(__file__).parent / "memory.jsonl"
FITTED, UPDATES = 27, 24
PLANS = (
    "sequential", "ring:workers=2", "downpour:workers=2", "ddp:workers=2", "gpipe:workers=2", "tensor:workers=2",
    "zero:workers=2",
)  # fmt: skip
LEAST = 1.5e6  # bytes of a worker below which its measurement is mostly noise


def jobs() -> Iterator[tuple[str, Job]]:
    yield from ((f"calibration {number}", calibration_job(number)) for number in range(FITTED))
    yield from ((name, make()) for name, make in JOBS.items())


def measured(minutes: float) -> None:
    """Append what is lacking to memory.jsonl."""
    known, start = {(row["job"], row["plan"]) for row in rows()}, time.monotonic()
    for name, job in jobs():
        if time.monotonic() - start > 60 * minutes:
            return
        divider = Divider(job, weighs=True)
        for text in PLANS:
            if (name, text) in known:
                continue
            try:
                plan = Plan.parse(text)
                found, division = measure(job, plan, UPDATES).memory, divider.divide(plan)
            except PacelineError:
                continue
            row = {"job": name, "plan": text, "measured": found}
            if division is not None:
                shares = {"memory": division.memory, "held": division.held, "computed": division.mean_share}
                row["division"] = {**shares, "parts": bool(division.computed)}
            add_line(KEPT, row)


def rows() -> list[dict[str, Any]]:
    return lines_of(KEPT)


@functools.cache
def costs() -> dict[tuple[str, str], tuple[Plan, ModelCost, ModelDivision | None]]:
    """The plan, the cost of a worker's samples and the division of every case."""
    found = {}
    made, counted = dict(jobs()), dict[tuple[str, int], ModelCost]()
    for row in rows():
        job, plan, share = made[row["job"]], Plan.parse(row["plan"]), row.get("division")
        samples = math.ceil(job.batch_size / max(1, plan.parts if plan.traits.synchronous else 1))
        division = None
        if share:
            computed = {"": share["computed"]} if share["parts"] else {}
            division = ModelDivision(0.0, share["memory"], held=share["held"], computed=computed)
        if (row["job"], samples) not in counted:
            counted[row["job"], samples] = cost_of(job, samples)
        found[row["job"], row["plan"]] = (plan, counted[row["job"], samples], division)
    return found


def fit() -> dict[str, float]:
    """Fit the coefficients of `heap` by nonnegative least squares of relative errors, reweighted to their median."""
    known = costs()
    mine = [row for row in rows() if row["job"].startswith("calibration") and row["measured"] > LEAST]
    figures = [_figures(*known[row["job"], row["plan"]]) for row in mine]
    names = sorted({name for each in figures for name in each})
    matrix = np.array([[each.get(name, 0.0) for name in names] for each in figures])
    wanted = np.array([row["measured"] for row in mine])
    scale, weights = 1 / np.maximum(wanted, 2e6), np.ones(len(mine))
    found = np.zeros(len(names))
    for _ in range(8):
        found, _ = nnls(matrix * (scale * weights)[:, None], wanted * scale * weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(matrix @ found - wanted) * scale, 0.03))
    return dict(zip(names, found.tolist(), strict=True))


def _figures(plan: Plan, cost: ModelCost, division: ModelDivision | None) -> dict[str, float]:
    found = {"BESIDES, MB": 1e6, "RECURRENT, MB": 1e6 * ("recurrent" in cost.kinds)}
    if isinstance(plan.method, Pipeline):
        assert division is not None
        return {**found, "STAGES": max(0.0, division.memory - memory.WORKSPACE)}
    how = memory.how(plan) if division is None else "parts" if division.computed else "shares"
    held, computed = (division.held, division.mean_share) if division else (1.0, 1.0)
    step = max(0, cost.peak_bytes - cost.parameter_bytes) * (1 + computed) / 2 + cost.batch_bytes
    return found | {
        "CONVOLUTION": cost.kinds.get("convolution", 0.0), "STEP": step,
        "STATE": 0.0 if how == "server" else held * cost.state_bytes,
        f"COPIES {how}": (held if how == "parts" else 1.0) * cost.parameter_bytes,
    }  # fmt: skip


def sum_up() -> str:
    """Errors with a card alone, and scaled by a worker of the same model alone, as a profile does."""
    known, errors = costs(), dict[tuple[str, str], list[float]]()
    alone = {row["job"]: row["measured"] for row in rows() if row["plan"] == "sequential"}
    for row in rows():
        plan, cost, division = known[row["job"], row["plan"]]
        if row["measured"] < LEAST:
            continue
        seen = "fitted" if row["job"].startswith("calibration") else "unseen"
        card = _predicted(plan, cost, division, 1.0)
        errors.setdefault((seen, "card"), []).append(card / row["measured"] - 1)
        if row["plan"] != "sequential" and row["job"] in alone:
            whole = known[row["job"], "sequential"][1]
            scaled = _predicted(plan, cost, division, alone[row["job"]] / memory.replica_bytes(whole, "alone"))
            errors.setdefault((seen, "profile"), []).append(scaled / row["measured"] - 1)
    lines = []
    for (seen, level), found in errors.items():
        within = [sum(abs(e) <= bound for e in found) / len(found) for bound in (0.1, 0.25)]
        middle, bias = statistics.median(map(abs, found)), statistics.median(found)
        lines.append((seen, level, len(found), f"{middle:.0%}", f"{bias:+.0%}", *(f"{share:.0%}" for share in within)))
    return table(("jobs", "level", "cases:", "median error:", "bias:", "within 10%:", "within 25%:"), lines)


def _predicted(plan: Plan, cost: ModelCost, division: ModelDivision | None, scale: float) -> float:
    if isinstance(plan.method, Pipeline):
        assert division is not None
        return memory.stage_bytes(cost, division.memory)
    if division is not None:
        how = "parts" if division.computed else "shares"
        return scale * memory.replica_bytes(cost, how, division.held, division.mean_share)
    return scale * memory.replica_bytes(cost, memory.how(plan))


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--minutes", type=float, default=math.inf)
    given.add_argument("--fit", action="store_true")
    given.add_argument("--sum-up", action="store_true")
    options = given.parse_args()
    warnings.simplefilter("ignore")
    if options.fit:
        print({name: round(value, 3) for name, value in fit().items()})
    elif not options.sum_up:
        measured(options.minutes)
    print(sum_up())


if __name__ == "__main__":
    main()
