"""Measures jobs, and keeps what predictions and their check need: both can then be repeated without the machine.

    paceline calibrate --output benchmarks/prediction/recorded/card.json
    python benchmarks/prediction/recording.py --set fitted --minutes 4    the jobs that are lacking; begins none later
    python benchmarks/prediction/recording.py JOB ...                     these, unless they have been measured

Of each job: a profile, as `choose` makes one, and every plan with 2 workers and a draw of those with 3 and 4, in two
rounds, of which the first is short.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jobs import SETS

from paceline.errors import PacelineError
from paceline.interfaces.api.planning.choose import can_fuse, facts_of, open_card
from paceline.interfaces.api.planning.dividing import Divider
from paceline.interfaces.api.planning.measuring import Measured, measure_for
from paceline.planning.planner.prediction import Candidate
from paceline.plans.plan import Plan, make
from paceline.training.jobs.job import Job

FOLDER = Path(__file__).parent / "recorded"
NAMES = (
    "ring", "tree", "halving_doubling", "central", "ddp", "downpour", "ssp", "hogwild", "dc_asgd", "backup",
    "local_sgd", "easgd", "diloco", "gossip", "layers", "gpipe", "one_f_one_b", "zero_bubble", "interleaved",
    "pipedream", "tensor", "zero", "mesh", "distbelief", "redundant", "one_weird_trick", "hierarchical", "cannon",
)  # fmt: skip
ANCHORS = (
    "ring:workers=2", "ring:workers=3", "ring:workers=4", "downpour:workers=2", "downpour:workers=4", "ddp:workers=2",
    "central:workers=2", "gpipe:workers=2", "tensor:workers=2",
)  # fmt: skip
ROUNDS, SECONDS, QUANTILES = 2, 0.2, 40
SHARE = {"fitted": 0.35, "unseen": 0.5}


def plans(job: str, share: float) -> Iterator[Candidate]:
    """Every plan with 2 workers, and a draw of those with 3 and 4."""
    chance = random.Random(job)
    yield Candidate(make("sequential"))
    yield Candidate(make("sequential", threads=2))
    yield Candidate(make("sequential"), "fused")
    for workers in (2, 3, 4):
        for name in NAMES:
            if workers > 2 and chance.random() > share:
                continue
            try:
                yield Candidate(make(name, workers=workers))
            except (PacelineError, ValueError):
                continue
        yield Candidate(make("ring", workers=workers), "fused")


def summary(found: Measured) -> dict[str, Any]:
    """What is kept of every short training."""
    return {
        "plan": str(found.plan), "batch": found.batch, "updates": found.updates, "seconds": found.seconds,
        "bytes": found.bytes, "memory": found.memory,
    }  # fmt: skip


def details(found: Measured) -> dict[str, Any]:
    """What is kept of a training that is profiled."""
    return {**summary(found), "compute": quantiles(found.compute), "update": quantiles(found.update)}


def quantiles(values: tuple[float, ...]) -> list[float]:
    if not values:
        return []
    count = min(QUANTILES, len(values))
    return [float(f"{q:.5g}") for q in np.quantile(values, (np.arange(count) + 0.5) / count)]


def profile_cases(job: Job, batch: int, cores: int) -> list[tuple[int, int, int]]:
    parts = sorted({max(1, -(-batch // n)) for n in (1, 2, 3, 4)}, reverse=True)
    return [
        (1, 1, batch),
        (1, cores, batch),
        (1, 1, parts[-1]),
        *((cores, 1, n) for n in parts),
        (2 * cores, 1, parts[-1]),
    ]


def run(job: Job, plan: Plan, guess: float, measured: bool, seconds: float = SECONDS) -> Measured | None:
    try:
        return measure_for(job, plan, seconds, guess, measured)
    except PacelineError as error:
        print("  left out:", plan, str(error).splitlines()[0][:150], flush=True)
        return None


def record(name: str, share: float) -> dict[str, Any]:
    job, card = SETS[name](), open_card(None)
    facts, _ = facts_of(job)
    batch, ways = min(job.batch_size, facts.batch), ["autograd"] + (["fused"] if can_fuse(job) else [])
    found: dict[str, Any] = {"job": name, "profiles": [], "anchors": [], "measured": [], "divisions": {}}
    for compute in ways:
        for busy, threads, samples in profile_cases(job, batch, card.cores):
            plan = make("sequential", threads=threads) if busy == 1 else make("ceiling", workers=busy, threads=threads)
            one = job.with_(batch_size=samples, accumulate_grad_batches=1, compute=compute)
            first = run(one, plan, 1e-3, False, 0.1)
            more = first and run(one, plan, first.seconds, True, 0.3)
            if more:
                found["profiles"].append(
                    {"way": compute, "busy": busy, "threads": threads, "samples": samples, **details(more)}
                )
        for text in ANCHORS if compute == "autograd" else ANCHORS[:1]:
            first = run(job.with_(compute=compute), Plan.parse(text), 1e-3, False, 0.1)
            more = first and run(job.with_(compute=compute), Plan.parse(text), first.seconds, True, SECONDS)
            if more:
                found["anchors"].append({"way": compute, **summary(more)})
    divider = Divider(job, weighs=True)
    wanted = [c for c in plans(name, share) if c.compute in ways]
    failed: set[str] = set()
    for number in range(ROUNDS):
        for each in wanted if number % 2 == 0 else reversed(wanted):
            if str(each) in failed:
                continue
            before = [row for row in found["measured"] if row["name"] == str(each)]
            guess = before[0]["seconds"] if before else 2e-3
            done = run(job.with_(compute=each.compute), each.plan, guess, bool(before))
            if done is None:
                failed.add(str(each))
                continue
            found["measured"].append({"name": str(each), "way": each.compute, **summary(done)})
            if str(each.plan) not in found["divisions"] and not number:
                division = divider.divide(each.plan)
                found["divisions"][str(each.plan)] = division and asdict(division)
    return found


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--set", choices=SHARE, default="fitted")
    given.add_argument("--minutes", type=float, default=math.inf)
    given.add_argument("jobs", nargs="*")
    options, start = given.parse_args(), time.monotonic()
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    for name in options.jobs or [n for n in SETS if (n.startswith("fit-")) == (options.set == "fitted")]:
        file = FOLDER / f"{name}.json"
        if file.exists() or time.monotonic() - start > 60 * options.minutes:
            continue
        begun = time.monotonic()
        file.write_text(json.dumps(record(name, SHARE[options.set])) + "\n")
        print(name, f"{time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
