"""Simulated worlds of 2 to 4 workers against real runs: throughput, and how stale gradients are.

    python benchmarks/prediction/worlds.py

A world is made of a card and a profile of the job, never of the run that it is compared with. Gradients of one run are
not independent of each other, so every fifth one is taken for the two-sample test.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from jobs import SETS
from scipy.stats import ks_2samp

from paceline.interfaces.api.planning.choose import open_card, planner_for
from paceline.interfaces.api.planning.measuring import traced
from paceline.planning.planner.simulating import timeline
from paceline.plans.plan import make
from paceline.runtime.runs.trace import Kind, Trace
from paceline.runtime.runs.verdict import steady

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import table, write

JOBS = ("fit-mlp-tanh-256", "fit-cnn-128")
PLANS = ("downpour", "ssp", "hogwild", "ring", "local_sgd")
UPDATES, APART = 800, 5
STALE = ("mean_simulated", "mean_real", "largest_difference", "p")
HEADER = ("job", "plan", "samples/s simulated:", "real:", "off:", "staleness simulated:", "real:", "KS:", "p:")


def staleness(trace: Trace) -> np.ndarray[Any, Any]:
    """The updates between the parameters that a gradient was computed with and those that it was applied to."""
    rows = trace.of_kind(Kind.APPLY)
    rows = rows[(rows["version"] > 0) & (rows["shard"] == 0)]
    return np.asarray((rows["version"] - 1 - rows["base"])[::APART])


def speed(trace: Trace) -> float:
    found = steady(trace)
    assert found is not None
    return found.samples_per_second


def compared(name: str) -> list[dict[str, Any]]:
    job = SETS[name]()
    planner = planner_for(job, open_card(None), "profiled", fused=False, workers=(2, 4))
    rows = []
    for plan in (make(each, workers=workers) for each in PLANS for workers in (2, 3, 4)):
        simulated = timeline(plan, planner.costs["autograd"], planner.facts, UPDATES, spread=True)
        real = traced(job, plan, UPDATES)
        row: dict[str, Any] = {"job": name, "plan": str(plan), "simulated": speed(simulated), "real": speed(real)}
        if plan.traits.versioned:
            mine, its = staleness(simulated), staleness(real)
            test = ks_2samp(mine, its)
            row |= {"mean_simulated": float(mine.mean()), "mean_real": float(its.mean()), "p": float(test.pvalue),
                    "largest_difference": float(test.statistic)}  # fmt: skip
        rows.append(row)
    return rows


def main() -> None:
    warnings.simplefilter("ignore")
    rows = [row for name in JOBS for row in compared(name)]
    lines = [
        (
            row["job"], row["plan"], f"{row['simulated']:,.0f}", f"{row['real']:,.0f}",
            f"{row['simulated'] / row['real'] - 1:+.0%}", *(f"{row[key]:.3g}" if key in row else "-" for key in STALE),
        )
        for row in rows
    ]  # fmt: skip
    print(table(HEADER, lines), end="")
    write({"rows": rows}, "worlds.json")


if __name__ == "__main__":
    main()
