"""How near to the ceiling: every data-parallel plan on two workers, three sizes of network, beside plain PyTorch, its
Hogwild example and DDP.

Speed is the slope between a short and a long training, taken by a clock outside; what is compared is run in turn, round
after round; medians and ratios are reported. The ceiling is two processes of a plain PyTorch loop, written here and
sharing no code with Paceline, that never meet: each trains its own model on batches of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.errors import JobWarning
from paceline.jobs.built_ins import IdxMissing, mnist
from paceline.plans.data_parallel import DATA_PARALLEL, PEERS
from paceline.plans.plan import Plan

sys.path.insert(0, str(Path(__file__).parents[1]))
from neighbours import neighbours
from record import write

BATCH = 100
# A backup worker's share is meant to come late; speed is that of the workers who are waited for.
ALONE = ("sequential", "ceiling")
MEMBERS = [{"backup": "backup:backups=0"}.get(name, name) for name in (*DATA_PARALLEL, *PEERS) if name not in ALONE]
SIZES = {"55 thousand": 64, "1 million": 660, "11 million": 2960}
Updates = int


def network(hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, hidden), nn.Tanh(), nn.Dropout(0.1),
        nn.Linear(hidden, hidden), nn.Tanh(), nn.Dropout(0.1),
        nn.Linear(hidden, 10),
    )  # fmt: skip


SGD = partial(torch.optim.SGD, lr=0.05, weight_decay=1e-5)


def plain_loop(model: nn.Module, updates: Updates, threads: int, start: Any, done: Any, indexing: str) -> None:
    """One process of an ordinary PyTorch loop, as the manual shows it."""
    torch.set_num_threads(threads)
    (x, y), _ = mnist(None)
    loss = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters())
    order = torch.randperm(len(x))
    start.wait()
    begun = time.perf_counter()
    for update in range(updates):
        at = update * BATCH % (len(x) - BATCH)
        which = order[at : at + BATCH]
        batch = (x[which], y[which]) if indexing == "plain" else (x.index_select(0, which), y.index_select(0, which))
        optimizer.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
    done.put(time.perf_counter() - begun)


def plain(
    processes: int, threads: int, hidden: int, indexing: str = "plain", shared: bool = False
) -> Callable[[Updates], float]:
    """Seconds for so many updates in each of so many processes that never meet, or that share one model as PyTorch's
    Hogwild example does.
    """

    def seconds(updates: Updates) -> float:
        context = multiprocessing.get_context("spawn")
        start, done = context.Barrier(processes), context.Queue()
        model = network(hidden).share_memory() if shared else network(hidden)
        args = (model, updates, threads, start, done, indexing)
        pool = [context.Process(target=plain_loop, args=args) for _ in range(processes)]
        for process in pool:
            process.start()
        found = [done.get() for _ in pool]
        for process in pool:
            process.join()
        return max(found)

    return seconds


def paceline(plan: str, hidden: int, data: Any, batch: int) -> Callable[[Updates], float]:
    job = pl.Job(
        model=partial(network, hidden),
        data=data,
        loss=nn.CrossEntropyLoss(),
        optimizer=SGD,
        batch_size=batch,
        epochs=10**6,
    )

    def seconds(updates: Updates) -> float:
        begun = time.perf_counter()
        pl.train(job, plan, folder=None, max_updates=updates)
        return time.perf_counter() - begun

    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a long training")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--plans", default=",".join(MEMBERS))
    parser.add_argument("--neighbours", type=int, default=0, help="busy processes of another program beside all")
    options = parser.parse_args()
    warnings.simplefilter("ignore", IdxMissing)
    warnings.simplefilter("ignore", JobWarning)  # sandblaster's: dropout is another loss in every evaluation
    data, _ = mnist(None)
    figures: dict[str, Any] = {}
    file = f"result_neighbours_{options.neighbours}.json" if options.neighbours else "result.json"
    with neighbours(options.neighbours):
        for size in options.sizes.split(","):
            figures[size] = measure(SIZES[size], data, options.rounds, options.seconds, options.plans.split(","))
            show(size, figures[size])
            write(Path(__file__).parent, {"rounds": options.rounds, "seconds": options.seconds, "sizes": figures}, file)


def measure(hidden: int, data: Any, rounds: int, length: float, plans: list[str]) -> dict[str, Any]:
    # (what, seconds for n updates, samples per update)
    entrants: list[tuple[str, Callable[[Updates], float], int]] = [
        ("one process, 1 thread", plain(1, 1, hidden), BATCH),
        ("one process, 2 threads", plain(1, 2, hidden), BATCH),
        ("ceiling", plain(2, 1, hidden), 2 * BATCH),
        ("ceiling, index_select", plain(2, 1, hidden, "select"), 2 * BATCH),
        ("PyTorch's Hogwild example", plain(2, 1, hidden, shared=True), 2 * BATCH),
    ]
    for name in plans:
        plan = Plan.parse(name, workers=2)
        batch = BATCH * plan.parts
        entrants.append((name, paceline(str(plan), hidden, data, batch), batch))
    speeds: dict[str, list[float]] = {name: [] for name, _, _ in entrants}
    many = {name: _long(seconds, length) for name, seconds, _ in entrants}
    for _ in range(rounds):
        for name, seconds, samples in entrants:
            few = many[name] // 10
            # Untimed: the first run after another program has given its memory back pays for getting it again.
            seconds(few)
            slope = (seconds(many[name]) - seconds(few)) / (many[name] - few)
            speeds[name].append(samples / slope)
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(speeds[name], speeds["ceiling"], strict=True)) for name in plans
    }
    strict = {
        name: statistics.median(a / b for a, b in zip(speeds[name], speeds["ceiling, index_select"], strict=True))
        for name in plans
    }
    best = max(medians["one process, 1 thread"], medians["one process, 2 threads"])
    return {
        "parameters": sum(p.numel() for p in network(hidden).parameters()),
        "samples_per_second": {name: round(value) for name, value in medians.items()},
        "range": {name: [round(min(found)), round(max(found))] for name, found in speeds.items()},
        "share_of_ceiling": {name: round(value, 3) for name, value in ratios.items()},
        "share_of_ceiling_index_select": {name: round(value, 3) for name, value in strict.items()},
        "speedup_over_best_single": {name: round(medians[name] / best, 2) for name in ratios},
    }


def _long(seconds: Callable[[Updates], float], length: float) -> Updates:
    """So many updates as take `length` seconds."""
    few, many = 4, 40
    seconds(few)  # the very first run also starts the process that all workers are forked from
    while (took := seconds(many) - seconds(few)) < length / 5:
        many *= 4
    return max(20, round((many - few) * length / took))


def show(size: str, found: dict[str, Any]) -> None:
    print(f"{size} parameters ({found['parameters']:,})")
    for name, speed in found["samples_per_second"].items():
        share = found["share_of_ceiling"].get(name)
        strict = found["share_of_ceiling_index_select"].get(name)
        tail = "" if share is None else f"  {share:.0%} of the ceiling, {strict:.0%} of the one with index_select"
        print(f"  {name:24} {speed:>10,} samples/s{tail}", flush=True)


if __name__ == "__main__":
    main()
