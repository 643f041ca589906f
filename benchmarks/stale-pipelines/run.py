"""What a pipeline without a flush costs in accuracy, and whether predicted weights give it back.

    python benchmarks/stale-pipelines/run.py [--seeds 10] [--jobs digits,residual]

Two small jobs trained with momentum, cut into six stages, so that the first computes gradients of weights that are
five updates old. For each way the learning rate is tuned (the mean test loss of three seeds that are not used again),
then ten seeds are trained. The arithmetic is the job's own, on the virtual engine; a test holds it to a sequential
oracle, to the bit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paceline as pl
from paceline.training.jobs.built_ins import digits, patterns

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

STAGES = 6
TUNING = (101, 102, 103)  # seeds
RATES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.two(torch.relu(self.one(x))))


def residual_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(),
        Block(8), Block(8), Block(8), Block(8),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def dense_net() -> nn.Module:
    widths = [256, 64, 64, 64, 64, 64]
    hidden = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], str, int, int]] = {
    # the model, its data, where it is cut, samples of a batch, epochs
    "digits": (dense_net, lambda: digits(16, 4), "3+5+7+9+11", 30, 4),
    "residual": (residual_net, lambda: patterns(2500, (3, 12, 12), 10, 3.0), "2+3+4+5+6", 25, 3),
}
WAYS = {
    "sequential": "sequential",
    "pipedream": f"pipedream:workers={STAGES},cuts=",
    "two buffers": f"pipedream:workers={STAGES},mode=two_buffers,micro_batches={STAGES},cuts=",
    "spectrain": f"spectrain:workers={STAGES},cuts=",
}


def run(job: str, way: str, rate: float, seed: int) -> tuple[float, float]:
    """(test loss, test accuracy)"""
    model, data, cuts, batch, epochs = JOBS[job]
    train, test = data()
    plan = WAYS[way] + cuts if "cuts" in WAYS[way] else WAYS[way]
    made = pl.Job(
        model=model, data=train, test=test, loss=nn.CrossEntropyLoss(), batch_size=batch, epochs=epochs, seed=seed,
        optimizer=partial(torch.optim.SGD, lr=rate, momentum=0.9), on_nan="ignore", evaluate_every=10**9,
    )  # fmt: skip
    summary = pl.train(made, plan, engine="virtual", folder=None).summary()
    loss = float(summary["test_loss"])
    return (loss if loss == loss else float("inf")), float(summary["test_accuracy"])


def study(job: str, seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for way in WAYS:
        tuned = {rate: statistics.mean(run(job, way, rate, seed)[0] for seed in TUNING) for rate in RATES}
        best = min(tuned, key=tuned.__getitem__)
        results = [run(job, way, best, seed) for seed in range(seeds)]
        losses, accuracies = [loss for loss, _ in results], [accuracy for _, accuracy in results]
        found[way] = {
            "rate": best,
            "tuning": {str(rate): round(loss, 4) for rate, loss in tuned.items()},
            "test_loss": summary(losses),
            "test_accuracy": summary(accuracies),
            "losses": [round(loss, 4) for loss in losses],
        }
        print(job, way, found[way], flush=True)
    rate = found["sequential"]["rate"]
    found["at the sequential rate"] = {
        way: summary([run(job, way, rate, seed)[0] for seed in range(seeds)]) for way in WAYS if way != "sequential"
    }
    print(job, found["at the sequential rate"], flush=True)
    return found


def summary(values: list[float]) -> dict[str, float]:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": round(statistics.mean(values), 4), "standard_error": round(spread / len(values) ** 0.5, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", default=",".join(JOBS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    for job in options.jobs.split(","):
        figures[job] = study(job, options.seeds)
        write({"stages": STAGES, "seeds": options.seeds, "jobs": figures})


if __name__ == "__main__":
    main()
