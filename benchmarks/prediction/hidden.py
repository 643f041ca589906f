"""Regret of `choose`, error of predicted times and coverage of intervals on twenty jobs that nothing was fitted on.

    python benchmarks/prediction/hidden.py [--rounds 5] [--seconds 0.3] [--jobs "GRU, batch 32"] [--neighbours 1]

Each job is chosen for as `paceline choose` does. Then the plan that it chose and those of `PLANS` are measured in
interleaved rounds that no prediction has seen, and are predicted by a profile and by the card alone. Regret is how
much longer an update takes by the chosen plan than by the fastest that learns as one process does. A job that was
measured is a line of hidden.jsonl; further calls measure those that lack, and `--again` measures anew.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hidden_jobs import JOBS

import paceline
from paceline.interfaces.api.lines import silent
from paceline.interfaces.api.planning.choose import LEVELS, open_card, planner_for
from paceline.interfaces.api.planning.measuring import measured_in_rounds
from paceline.planning.planner.prediction import Candidate, Prediction, same_learning
from paceline.planning.planner.validating import Check, check
from paceline.plans.plan import Plan

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import into_page, median, neighbours, rows_of, table, write

PLANS = (
    "sequential",
    "sequential:threads=2",
    "ring:workers=2",
    "tree:workers=2",
    "downpour:workers=2",
    "ddp:workers=2",
)
WAYS = ("autograd", "fused")
FAR = 0.20  # an error above is listed


def measure(rounds: int, seconds: float, name: str) -> dict[str, Any]:
    """What was predicted and measured of a job."""
    job = JOBS[name]().with_(name=name, compute="auto")
    choice = paceline.choose(job, say=silent)
    card = open_card(None)
    planners = {level: planner_for(job, card, level, workers=(2,)) for level in LEVELS}
    candidates = {str(each): each for each in (Candidate(Plan.parse(plan), way) for way in WAYS for plan in PLANS)}
    best = Candidate(choice.best.plan, choice.best.compute)
    candidates.setdefault(str(best), best)
    predicted: dict[str, dict[str, Prediction]] = {level: {} for level in LEVELS}
    for level, planner in planners.items():
        for text, each in candidates.items():
            if (prediction := planner.predict(each)) is not None:
                predicted[level][text] = prediction
    names = list(predicted["profiled"])
    runs = measured_in_rounds(job, [predicted["profiled"][text] for text in names], rounds, seconds)
    measured = {text: [run.seconds for run in done] for text, done in zip(names, runs, strict=True) if done}
    checks = [
        asdict(check(prediction, measured[text]))
        for level in LEVELS
        for text, prediction in predicted[level].items()
        if len(measured.get(text, ())) > 1
    ]
    load = os.getloadavg()[0]
    return {"chosen": str(best), "measured": measured, "checks": checks, "load": round(load, 1)}


def regret(row: dict[str, Any]) -> tuple[float, str]:
    """How much longer an update by the chosen plan takes than by the fastest, and which that is."""
    times = {
        name: median(each)
        for name, each in row["measured"].items()
        if same_learning(Plan.parse(name.removesuffix(" + fused")))
    }
    best = min(times, key=times.__getitem__)
    return times[row["chosen"]] / times[best] - 1, best


def of_level(checks: list[Check], level: str) -> tuple[str, str]:
    """The median and the 90th percentile of errors of a level, and how many of its intervals held."""
    mine = [each for each in checks if each.level == level]
    if len(mine) < 2:
        return "-", "-"
    errors = [abs(each.error) for each in mine]
    tenth = statistics.quantiles(errors, n=10)[-1]
    return f"{median(errors):.0%} ({tenth:.0%})", f"{sum(each.covered for each in mine)} of {len(mine)}"


def pages(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The table of jobs, with a last row of all, and that of predictions that were far off."""
    header = ("job", "chosen", "fastest", "regret:", "error with a profile (90th percentile):", "90% held:",
              "with the card alone:", "90% held:", "load:")  # fmt: skip
    lines: list[tuple[object, ...]] = []
    every, far, regrets = list[Check](), list[tuple[object, ...]](), list[float]()
    for row in rows:
        checks = [Check(**{**each, "halves": tuple(each["halves"])}) for each in row["checks"]]
        by, best = regret(row)
        regrets.append(by)
        every += checks
        cells = [cell for level in reversed(LEVELS) for cell in of_level(checks, level)]
        lines.append((row["key"], f"`{row['chosen']}`", f"`{best}`", f"{by:.0%}", *cells, row["load"]))
        far += [
            (row["key"], f"`{each.name}`", each.level, f"{each.error:+.0%}", f"{each.noise:.0%}")
            for each in checks
            if abs(each.error) > max(FAR, each.noise)
        ]
    cells = [cell for level in reversed(LEVELS) for cell in of_level(every, level)]
    summary = f"**{max(regrets):.0%}** at worst, {sum(each <= 0.05 for each in regrets)} of {len(regrets)} at most 5%"
    lines.append(("all", "", "", summary, *cells, ""))
    return table(header, lines), table(("job", "plan", "level", "error:", "noise:"), far)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each plan in a round")
    parser.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--neighbours", type=int, default=0, help="busy processes of another program beside all")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    name = f"hidden-{options.neighbours}.jsonl" if options.neighbours else "hidden.jsonl"
    if options.again:
        (Path(__file__).parent / name).unlink(missing_ok=True)
    with neighbours(options.neighbours):
        for job in options.jobs:  # one after another, so that a page is there if the call is interrupted
            rows = rows_of(name, [job], partial(measure, options.rounds, options.seconds))
            text, far = pages(rows)
            print(text, flush=True)
            write(
                {"neighbours": options.neighbours, "jobs": len(rows)}, name.replace("jsonl", "json"), print_path=False
            )
            into_page(text, name.partition(".")[0])
            into_page(far, f"{name.partition('.')[0]} far")


if __name__ == "__main__":
    main()
