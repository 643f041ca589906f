"""What `paceline train --compute fused` delivers, beside what its kernels can do and beside plain PyTorch.

Speed is the slope between a short and a long training, taken by a clock outside, with a folder, a trace and two
evaluations in both. What is compared runs in turn, round after round, to and fro. One worker is compared with
`fuse(...).train_epoch`, timed before and after its trainings; two workers with two that never communicate, measured as
they are, on pieces of the same size. Plain PyTorch is the best of one thread and two, eager and compiled.

Figures go to result.json, where those of other networks and plans stay, and from there into README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import paceline as pl
from paceline.errors import JobWarning
from paceline.kernels import fuse
from paceline.kernels.measure.networks import NETWORKS, RATE, Network, best_pytorch
from paceline.plans.plan import Plan
from paceline.runtime.runs.trace import Kind, Trace

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from harness import into_page, median, read, seconds, table, write  # noqa: E402

SGD = partial(torch.optim.SGD, lr=RATE)
CEILING = "ceiling:workers=2"
PAIRS = ("ring", "downpour", "hogwild", "ssp", "gossip", "local_sgd", "diloco")
PLANS = ["sequential", CEILING, *(f"{name}:workers=2" for name in PAIRS), "backup:workers=2,backups=0"]


class Kernels:
    """The generated code by itself, with everything in memory."""

    def __init__(self, network: Network, threads: int) -> None:
        self.x, self.y = network.data(network.samples)
        self.fused = fuse(network.make(), nn.CrossEntropyLoss(), SGD, network.batch, threads=threads)
        self.fused.prepare(self.x[:1])
        self.epoch()

    def epoch(self) -> float:
        """Seconds of an epoch."""
        return seconds(partial(self.fused.train_epoch, self.x, self.y, torch.randperm(len(self.x))))

    def best(self) -> float:
        """Seconds of the fastest of three epochs."""
        return min(self.epoch() for _ in range(3))


class Command:
    """Trainings of a network by one plan, as a user would wait for them."""

    def __init__(self, network: Network, plan: str, compute: str) -> None:
        self.network, self.plan, self.compute = network, Plan.parse(plan), compute
        self.batch = network.batch * self.plan.parts  # so that each worker computes batches of the network's own size
        #: Microseconds of the median step of the last training.
        self.step = 0.0
        self.seconds(1)  # compiles, and loads what all trainings need

    def seconds(self, epochs: int) -> float:
        """Seconds of a training of so many epochs."""
        network = self.network
        updates = -(-network.samples // self.batch) * epochs
        job = pl.Job(
            model=network.make, data=network.data(network.samples), test=network.data(1000), epochs=epochs,
            loss=nn.CrossEntropyLoss(), optimizer=SGD, batch_size=self.batch, evaluate_every=-(-updates // 2),
            compute=self.compute,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            run = pl.train(job, self.plan, folder=folder)
            passed = time.perf_counter() - begin
        self.step = median_step(run.trace)
        return passed

    def epoch(self, epochs: int) -> float:
        """Seconds of an epoch: the slope between a training of one and one of so many more."""
        short = self.seconds(1)
        return (self.seconds(1 + epochs) - short) / epochs


def median_step(trace: Trace) -> float:
    """Microseconds from the start of a gradient to that of the next, at worker 0.

    A step lasts a fraction of a millisecond, so other programs interrupt few of them: the median is nearly that of a
    quiet machine as long as each worker has a core most of the time.
    """
    rows = trace.of_kind(Kind.COMPUTE)
    return float(np.median(np.diff(rows["start"][rows["worker"] == 0]))) / 1e3


def measure(network: Network, plans: list[str], rounds: int, longest: float, compute: str) -> dict[str, Any]:
    """Seconds per epoch of every plan, round after round, and of what it is compared with."""
    commands = {plan: Command(network, plan, compute) for plan in plans}
    alone = {plan: Kernels(network, each.plan.threads) for plan, each in commands.items() if each.plan.workers == 1}
    quickest = Kernels(network, 1).best()
    longer = {plan: max(2, round(longest * each.plan.workers / quickest)) for plan, each in commands.items()}
    found: dict[str, dict[str, Any]] = {plan: {"epochs": [], "steps": [], "compared": []} for plan in plans}
    for number in range(rounds):
        ceiling = 0.0
        for plan in plans if number % 2 == 0 else reversed(plans):
            before = alone[plan].best() if plan in alone else 0.0
            found[plan]["epochs"].append(commands[plan].epoch(longer[plan]))
            found[plan]["steps"].append(commands[plan].step)
            if plan in alone:
                found[plan]["compared"].append(min(before, alone[plan].best()))
            elif plan == CEILING:
                ceiling = found[plan]["epochs"][-1]
        for plan in plans:
            if plan not in alone:
                found[plan]["compared"].append(ceiling)
    return found


def shares(row: dict[str, Any]) -> list[float]:
    return [compared / epoch for compared, epoch in zip(row["compared"], row["epochs"], strict=True)]


HEADER = ("network", "plan", "s per epoch:", "of", "share:", "median step, µs:", "share:", "rounds:", "load:")


def page(networks: dict[str, Any]) -> str:
    """Return the table of README.md: medians, and the range of the rounds."""
    lines: list[tuple[object, ...]] = []
    for name, rows in networks.items():
        for plan, row in rows.items():
            if plan == "pytorch":
                mode = f"PyTorch, {row['mode']}"
                lines.append((name, mode, f"{row['seconds']:.3f}", *[""] * 5, f"{row['load']:.1f}"))
                continue
            part, of = shares(row), "ceiling" if "workers" in plan else "kernels"
            share = f"**{median(part):.2f}** ({min(part):.2f}-{max(part):.2f})" if plan != CEILING else ""
            epoch, step = f"{median(row['epochs']):.3f}", median(row["steps"])
            by_step = f"{median(rows[CEILING]['steps']) / step:.2f}" if of == "ceiling" else ""
            load = f"{row['load']:.1f}"
            lines.append((name, f"`{plan}`", epoch, of, share, f"{step:.0f}", by_step, len(part), load))
    return table(HEADER, lines)


def keep(networks: dict[str, Any], options: dict[str, Any]) -> None:
    """Write the figures to result.json, beside those that were measured before, and their table into README.md."""
    known = read().get("networks", {})
    merged = {name: known.get(name, {}) | networks.get(name, {}) for name in {**known, **networks}}
    write({"last": options, "networks": merged})
    into_page(page(merged))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="how much longer the long training is, by the kernels"
    )
    parser.add_argument("--networks", nargs="+", default=["mnist-cnn", "mnist-dnn"], choices=[n.name for n in NETWORKS])
    parser.add_argument("--plans", nargs="+", default=PLANS)
    parser.add_argument("--compute", default="fused")
    parser.add_argument("--pytorch", type=float, default=0.0, help="seconds for each mode of PyTorch; 0 leaves it out")
    options = parser.parse_args()
    plans = options.plans
    if any("workers=" in plan for plan in plans) and CEILING not in plans:
        parser.error(f"plans of two workers are compared with {CEILING}; name it among --plans")
    warnings.simplefilter("ignore", JobWarning)
    for network in NETWORKS:
        if network.name not in options.networks:
            continue
        rows = measure(network, plans, options.rounds, options.seconds, options.compute)
        if options.pytorch:
            modes = best_pytorch(network, 2, options.pytorch)
            rows["pytorch"] = {"mode": min(modes, key=modes.__getitem__), "seconds": min(modes.values())}
        figures = {network.name: {plan: row | {"load": os.getloadavg()[0]} for plan, row in rows.items()}}
        keep(figures, vars(options))
        print(page(figures))


if __name__ == "__main__":
    main()
