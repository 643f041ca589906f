"""How far predictions are off: ten jobs that the card was not fitted on, nine plans each, in interleaved rounds.

python benchmarks/prediction/run.py                measure the jobs that result.json lacks, one after another
python benchmarks/prediction/run.py --minutes 5    the same, and begin no other job after so many minutes
python benchmarks/prediction/run.py JOB ...        measure these jobs, again if they have been
python benchmarks/prediction/run.py --sum-up       print the table of result.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

from jobs import JOBS
from paceline.api.choose import open_card, planner_for
from paceline.api.validate import measured_in_rounds
from paceline.planner.candidates import Candidate, same_learning
from paceline.planner.validating import Check, check, validation
from paceline.plans.plan import Plan
from paceline.runs.machine import this_machine

RESULT = Path(__file__).parent / "result.json"
PLANS = (
    "sequential", "sequential:threads=2", "ring:workers=2", "central:workers=2", "ddp:workers=2", "downpour:workers=2",
    "local_sgd:workers=2", "gpipe:workers=2", "downpour:workers=4",
)  # fmt: skip
ROUNDS, SECONDS = 3, 0.2


def measure(name: str, fused: bool) -> dict[str, Any]:
    """Predict all plans for a job at both levels, then measure them."""
    job, card = JOBS[name](), open_card(None)
    planners = {level: planner_for(job, card, level, fused=fused) for level in ("calibrated", "profiled")}
    candidates = [Candidate(Plan.parse(plan)) for plan in PLANS]
    if "fused" in planners["profiled"].costs:
        candidates += [Candidate(Plan.parse(plan), "fused") for plan in ("sequential", "ring:workers=2")]
    predicted = {
        level: {str(c): found for c in candidates if (found := planner.predict(c)) is not None}
        for level, planner in planners.items()
    }
    wanted = [predicted["profiled"][str(c)] for c in candidates if str(c) in predicted["profiled"]]
    runs = measured_in_rounds(job, wanted, ROUNDS, SECONDS)
    found: dict[str, Any] = {"job": name, "levels": {}}
    for level, by_name in predicted.items():
        checks = [
            check(by_name[p.name], [r.seconds for r in done], statistics.median(r.bytes for r in done),
                  max(r.memory for r in done))
            for p, done in zip(wanted, runs, strict=True)
            if done and p.name in by_name
        ]  # fmt: skip
        found["levels"][level] = validation(name, checks).as_dict()
    return found


def sum_up(results: list[dict[str, Any]]) -> str:
    """Write the figures of all jobs as a table."""
    lines = [
        "| job | level | error | bias | rank | regret | coverage | noise floor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    everything: dict[str, list[Check]] = {}
    regrets: dict[str, list[float]] = {}
    autos, defaults, ddps = [], [], []
    for result in results:
        for level, found in result["levels"].items():
            checks = [_check(row) for row in found["checks"]]
            same = [c for c in checks if same_learning(Plan.parse(c.plan)) and not c.plan.startswith("gpipe")]
            choice = validation(result["job"], same)
            everything.setdefault(level, []).extend(checks)
            regrets.setdefault(level, []).append(choice.regret)
            lines.append(
                f"| {result['job']} | {level} | {found['error']:.1%} | {found['bias']:+.1%} | "
                f"{found['rank_correlation']:.2f} | {choice.regret:.1%} | {found['coverage']:.0%} | "
                f"{found['noise']:.1%} |"
            )
            if level == "profiled":
                best = min(c.measured for c in same)
                autos.append((choice.regret + 1) * best / best)
                defaults.append(next(c for c in same if c.plan == "sequential:threads=2").measured / best)
                ddps.append(next(c for c in same if c.plan == "ddp:workers=2").measured / best)
    lines += _judged(results)
    for level, checks in everything.items():
        error = statistics.median(abs(c.error) for c in checks)
        covered = sum(c.covered for c in checks) / len(checks)
        noise = statistics.median(c.noise for c in checks)
        lines.append(
            f"| **all** | {level} | {error:.1%} | {statistics.median(c.error for c in checks):+.1%} | | "
            f"median {statistics.median(regrets[level]):.1%}, worst {max(regrets[level]):.1%} | {covered:.0%} | "
            f"{noise:.1%} |"
        )
    exact = [c for c in everything.get("profiled", []) if c.bytes_measured]
    right = sum(abs(c.bytes_predicted / c.bytes_measured - 1) < 1e-9 for c in exact)
    lines.append(f"\nBytes on the wire: {right} of {len(exact)} predictions exact.")
    if autos:
        lines.append(
            f"Time over the oracle's, mean of jobs: auto {statistics.fmean(autos):.2f}, PyTorch's default (one "
            f"process, its own threads) {statistics.fmean(defaults):.2f}, DDP {statistics.fmean(ddps):.2f}."
        )
    return "\n".join(lines)


def _judged(results: list[dict[str, Any]]) -> list[str]:
    """Widen intervals by every second job, and count what they cover of the others."""
    found = []
    for level in ("calibrated", "profiled"):
        parts = [[_check(row) for r in results[start::2] for row in r["levels"][level]["checks"]] for start in (0, 1)]
        if not all(parts):
            continue
        sizes = [
            sorted(abs(math.log(c.measured / c.predicted)) / math.log(c.high / c.predicted) for c in p) for p in parts
        ]
        by = sizes[0][int(0.9 * (len(sizes[0]) - 1))]
        covered = sum(size <= by for size in sizes[1]) / len(sizes[1])
        found.append(f"| odd jobs, intervals x {by:.1f} by the even ones | {level} | | | | | {covered:.0%} | |")
    return found


def _check(row: dict[str, Any]) -> Check:
    fields = {key: value for key, value in row.items() if key not in ("error", "noise", "covered")}
    return Check(**{**fields, "halves": tuple(fields["halves"])})


def main() -> None:
    kept = json.loads(RESULT.read_text())["results"] if RESULT.exists() else []
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("jobs", nargs="*", metavar="JOB")
    given.add_argument("--minutes", type=float, default=math.inf)
    given.add_argument("--sum-up", action="store_true")
    given.add_argument("--fused", action="store_true", help="generated code, too")
    options, start = given.parse_args(), time.monotonic()
    if unknown := [name for name in options.jobs if name not in JOBS]:
        given.error(f"there is no job {unknown[0]!r}; there are {', '.join(JOBS)}")
    lacking = [name for name in JOBS if name not in {each["job"] for each in kept}]
    warnings.simplefilter("ignore")
    for name in () if options.sum_up else options.jobs or lacking:
        if time.monotonic() - start > 60 * options.minutes:
            break
        kept = [each for each in kept if each["job"] != name] + [measure(name, options.fused)]
        machine = this_machine()
        RESULT.write_text(json.dumps({"machine": vars(machine), "results": kept}, indent=1, default=str) + "\n")
        print(name, {level: round(found["error"], 3) for level, found in kept[-1]["levels"].items()}, flush=True)
    print(sum_up(kept))


if __name__ == "__main__":
    main()
