"""Simulated worlds of 2 to 4 workers against real runs: throughput, and how stale gradients are.

    python benchmarks/prediction/worlds.py

A world is made of a card and a profile of the job, never of the run that it is compared with. Gradients of one run are
not independent of each other, so every fifth one is taken for the two-sample test.
"""

from __future__ import annotations

import json
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
from paceline.runtime.runs.machine import this_machine
from paceline.runtime.runs.trace import Kind, Trace
from paceline.runtime.runs.warm_up import steady

JOBS = ("fit-mlp-tanh-256", "fit-cnn-128")
PLANS = ("downpour", "ssp", "hogwild", "ring", "local_sgd")
UPDATES, APART = 800, 5
RESULT = Path(__file__).parent / "worlds.json"


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
    print("| job | plan | samples/s simulated | real | off | staleness simulated | real | KS | p |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        stale = "".join(
            f" {row[key]:.3g} |" if key in row else " - |"
            for key in ("mean_simulated", "mean_real", "largest_difference", "p")
        )
        off = row["simulated"] / row["real"] - 1
        print(f"| {row['job']} | {row['plan']} | {row['simulated']:,.0f} | {row['real']:,.0f} | {off:+.0%} |{stale}")
    RESULT.write_text(json.dumps({"machine": vars(this_machine()), "rows": rows}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
