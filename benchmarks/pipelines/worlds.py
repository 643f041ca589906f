"""Random pipelines with real processes: all finish inside a deadline, with the numbers of one process.

    python benchmarks/pipelines/worlds.py [--worlds 200] [--seed 0]

A world is a random model (linear layers, dropout, batch norm, skip connections), random cuts, a schedule, 1 to 6
workers and 1 to 9 micro-batches, sometimes clipped or recomputed. Synchronous schedules must be `sequential` to 1e-9;
those without a flush must have the bits of the virtual engine, which a test holds to a sequential oracle.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from paceline.testing.conformance import difference
from torch import Tensor, nn

import paceline as pl
from paceline.errors import UsageError
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan, make

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

DEADLINE, UPDATES, TOLERANCE = 30.0, 4, 1e-9
FLUSHED = ("layers", "gpipe", "one_f_one_b", "interleaved", "zero_bubble")
ENDLESS = ("pipedream", "pipedream:mode=two_buffers", "spectrain")


class Skip(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(width, width), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(torch.tanh(self.inner(x)))


def endless(plan: Plan) -> bool:
    """Whether the pipeline is never flushed before the end."""
    return isinstance(plan.method, Pipeline) and plan.method.schedule.span == 0


def model(kinds: tuple[str, ...], width: int) -> nn.Module:
    made = {"linear": nn.Linear, "skip": lambda n, _: Skip(n), "norm": lambda n, _: nn.BatchNorm1d(n)}
    parts = [part for kind in kinds for part in (made[kind](width, width), nn.Tanh())]
    return nn.Sequential(*parts, nn.Linear(width, 5)).double()


def world(draw: random.Random) -> tuple[pl.Job, Plan]:
    name = draw.choice(FLUSHED + ENDLESS)
    workers, width = draw.randint(1, 6), draw.randint(3, 9)
    each = draw.randint(1, 2) if name == "interleaved" else 1
    micro = draw.randint(1, 9) if name in FLUSHED else workers + draw.randint(0, 2) if "two" in name else 1
    stages = workers * each
    depth = max(stages, draw.randint(2, 8))
    kinds = tuple(draw.choice(("linear", "skip", "norm")) for _ in range(depth))
    pieces = [str(place) for place in range(1, 2 * depth + 1)]  # the model's parts but the first, as they are called
    cuts = sorted(draw.sample(pieces, stages - 1), key=int)
    # A skip is several pieces; to cut before it, name its first.
    options: dict[str, Any] = {"workers": workers, "cuts": "+".join(cuts)}
    if "spectrain" not in name and name != "pipedream":
        options["micro_batches"] = micro
    if each > 1 or name == "interleaved":
        options["each"] = each
    if "two" in name:
        options["mode"] = "two_buffers"
    if name != "spectrain" and draw.random() < 0.3:
        options["recompute"] = "all"
    generator = torch.Generator().manual_seed(draw.randrange(10**6))
    samples = draw.randint(40, 70)
    x = torch.randn(samples, width, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (samples,), generator=generator)
    job = pl.Job(
        model=partial(model, kinds, width),
        data=(x, y),
        loss=nn.CrossEntropyLoss(),
        batch_size=draw.randint(2 * micro, 30),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        epochs=9,
        seed=draw.randrange(1000),
        gradient_clip_norm=0.5 if name in FLUSHED and draw.random() < 0.3 else None,
    )
    return job, make(name.partition(":")[0], **options)


def gap(job: pl.Job, plan: Plan) -> float:
    """From one process; of pipelines without a flush, from the virtual engine."""
    run = pl.train(job, plan, folder=None, max_updates=UPDATES, timeout=DEADLINE)
    other = plan if endless(plan) else make("sequential", chunks=plan.parts)
    return difference(pl.train(job, other, engine="virtual", folder=None, max_updates=UPDATES).model, run.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    draw, begun = random.Random(options.seed), time.perf_counter()
    kinds, worst, slowest, refused = Counter[str](), 0.0, 0.0, Counter[str]()
    while sum(kinds.values()) < options.worlds:
        job, plan = world(draw)
        start = time.perf_counter()
        try:
            found = gap(job, plan)
        except UsageError as error:
            refused[str(error)[:60]] += 1
            continue
        bound = 0.0 if endless(plan) else TOLERANCE
        assert found <= bound, f"{plan}: {found}"
        worst, slowest = max(worst, found), max(slowest, time.perf_counter() - start)
        kinds[plan.name] += 1
        if sum(kinds.values()) % 20 == 0:
            print(sum(kinds.values()), dict(kinds), f"worst {worst:.1e}, slowest {slowest:.1f} s", flush=True)
    figures = {
        "worlds": sum(kinds.values()), "schedules": dict(kinds), "worst_difference": worst,
        "slowest_seconds": round(slowest, 2), "refused_before_the_start": dict(refused),
        "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip
    write(figures, "worlds.json")


if __name__ == "__main__":
    main()
