"""What `paceline train --compute fused` delivers, beside what its kernels can do and beside plain PyTorch.

Speed is the slope between a short and a long training, taken by a clock outside, with a folder, a trace and two
evaluations in both. What is compared runs in turn, round after round; medians over the rounds are reported. An epoch of
`fuse(...).train_epoch` is timed before and after each training. Plain PyTorch is the best of one thread and two, eager
and compiled.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.errors import JobWarning
from paceline.kernels import fuse
from paceline.kernels.measure.networks import NETWORKS, RATE, Network
from paceline.kernels.measure.opponents import best_pytorch

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import write

SGD = partial(torch.optim.SGD, lr=RATE)


class Kernels:
    """The generated code by itself, with everything in memory."""

    def __init__(self, network: Network, threads: int) -> None:
        self.x, self.y = network.data(network.samples)
        self.fused = fuse(network.make(), nn.CrossEntropyLoss(), SGD, network.batch, threads=threads)
        self.fused.prepare(self.x[:1])

    def epoch(self) -> float:
        """Seconds of an epoch."""
        order = torch.randperm(len(self.x))
        begin = time.perf_counter()
        self.fused.train_epoch(self.x, self.y, order)
        return time.perf_counter() - begin


def training(network: Network, plan: str, epochs: int, compute: str) -> float:
    """Seconds of a training of so many epochs, as a user would wait for them."""
    updates = -(-network.samples // network.batch) * epochs
    job = pl.Job(
        model=network.make, data=network.data(network.samples), test=network.data(1000), loss=nn.CrossEntropyLoss(),
        optimizer=SGD, batch_size=network.batch, epochs=epochs, evaluate_every=-(-updates // 2), compute=compute,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        pl.train(job, plan, folder=folder)
        return time.perf_counter() - begin


def measure(network: Network, plan: str, rounds: int, seconds: float, compute: str = "fused") -> dict[str, float]:
    """Seconds per epoch of the kernels and of the main command, and the share that the command delivers."""
    threads = int(plan.partition("threads=")[2] or 1)
    kernels = Kernels(network, threads)
    kernels.epoch()
    training(network, plan, 1, compute)  # compiles, and loads what all trainings need
    found: list[tuple[float, float]] = []
    longer = max(2, round(seconds / kernels.epoch()))
    for _ in range(rounds):
        before = min(kernels.epoch() for _ in range(3))
        short = training(network, plan, 1, compute)
        slope = (training(network, plan, 1 + longer, compute) - short) / longer
        found.append((min(before, *(kernels.epoch() for _ in range(3))), slope))
    alone, trained = (statistics.median(column) for column in zip(*found, strict=True))
    share = statistics.median(kernels / command for kernels, command in found)
    return {"kernels": alone, "command": trained, "share": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a long training")
    parser.add_argument("--networks", default=",".join(network.name.partition(" ")[0] for network in NETWORKS))
    parser.add_argument("--plans", default="sequential,sequential:threads=2")
    parser.add_argument("--compute", default="fused")
    parser.add_argument("--pytorch", type=float, default=0.0, help="seconds for each mode of PyTorch; 0 leaves it out")
    options = parser.parse_args()
    warnings.simplefilter("ignore", JobWarning)
    wanted, figures = options.networks.split(","), dict[str, Any]()
    for network in NETWORKS:
        if network.name.partition(" ")[0].strip(",") not in wanted and network.name not in wanted:
            continue
        row: dict[str, Any] = {}
        for plan in options.plans.split(","):
            row[plan] = measure(network, plan, options.rounds, options.seconds, options.compute)
            print(network.name, plan, {name: round(value, 4) for name, value in row[plan].items()}, flush=True)
        if options.pytorch:
            row["pytorch"] = best_pytorch(network, 2, options.pytorch)
            print(network.name, row["pytorch"], flush=True)
        figures[network.name] = row
    write(Path(__file__).parent, {"rounds": options.rounds, "seconds": options.seconds, "networks": figures})


if __name__ == "__main__":
    main()
