"""How near to the ceiling: every data-parallel plan on two workers, three sizes of network, beside plain PyTorch, its
Hogwild example and DDP; by autograd, and some of them as `train` computes by default: in generated code where that is
faster.

Speed is the slope between a short and a long training, taken by a clock outside; what is compared is run in turn, round
after round. Each round is a line of rounds.jsonl as soon as it is done, and further calls add to it; medians and ratios
of all are reported. The ceiling is two processes of a plain PyTorch loop, written here and
sharing no code with Paceline, that never meet: each trains its own model on batches of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import paceline as pl
from paceline.errors import JobWarning
from paceline.plans.catalogue import DATA_PARALLEL, PEERS
from paceline.plans.plan import Plan
from paceline.training.jobs.built_ins import IdxMissing, mnist

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import add_line, lines_of, median, neighbours, spread, write

FOLDER = Path(__file__).parent
BATCH = 100
# A backup worker's share is meant to come late; speed is that of the workers who are waited for.
ALONE = ("sequential", "ceiling")
MEMBERS = [{"backup": "backup:backups=0"}.get(name, name) for name in (*DATA_PARALLEL, *PEERS) if name not in ALONE]
DEFAULT = "{}, default"
BY_DEFAULT = ("sequential", "ring", "downpour")
SIZES = {"55 thousand": 64, "1 million": 660, "11 million": 2960}
#: About what each worker makes in a second, to choose how long a training is.
UPDATES = {"55 thousand": 1000, "1 million": 120, "11 million": 9}
Updates = int


class Entrant(NamedTuple):
    """What is measured: the seconds of a training of so many updates, and how many it makes in a long one."""

    seconds: Callable[[Updates], float]
    samples: int  # of an update
    updates: Updates
    #: Whether it decides how to compute, once for each length of a training.
    decides: bool = False


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


def paceline(plan: str, hidden: int, data: Any, batch: int, compute: str = "autograd") -> Callable[[Updates], float]:
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
        pl.train(job, plan, folder=None, max_updates=updates, compute=compute)
        return time.perf_counter() - begun

    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a long training")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--plans", default=",".join(MEMBERS), help="computed by autograd")
    parser.add_argument("--default", default=",".join(BY_DEFAULT), help="computed as `train` does by default")
    parser.add_argument("--neighbours", type=int, default=0, help="busy processes of another program beside all")
    parser.add_argument("--again", action="store_true", help="begin a new rounds.jsonl")
    options = parser.parse_args()
    warnings.simplefilter("ignore", IdxMissing)
    warnings.simplefilter("ignore", JobWarning)  # sandblaster's: dropout is another loss in every evaluation
    data, _ = mnist(None)
    rows = FOLDER / "rounds.jsonl"
    if options.again:
        rows.unlink(missing_ok=True)
    with neighbours(options.neighbours):
        for _ in range(options.rounds):
            for size in options.sizes.split(","):
                speeds = one_round(size, data, options.seconds, options.plans.split(","), options.default.split(","))
                row = {"size": size, "neighbours": options.neighbours, "speeds": speeds}
                add_line(rows, row)
                found = summary(lines_of(rows))
                write(found)
                show(found[title(size, options.neighbours)])


def one_round(size: str, data: Any, length: float, plans: list[str], defaults: list[str]) -> dict[str, float]:
    """Return the samples per second of everything, measured once in turn."""
    hidden, batches = SIZES[size], round(UPDATES[size] * length)  # batches of a long training in every process
    entrants = {
        "one process, 1 thread": Entrant(plain(1, 1, hidden), BATCH, batches),
        "one process, 2 threads": Entrant(plain(1, 2, hidden), BATCH, batches),
        "ceiling": Entrant(plain(2, 1, hidden), 2 * BATCH, batches),
        "ceiling, index_select": Entrant(plain(2, 1, hidden, "select"), 2 * BATCH, batches),
        "PyTorch's Hogwild example": Entrant(plain(2, 1, hidden, shared=True), 2 * BATCH, batches),
    }
    for name, compute in [*((name, "autograd") for name in plans), *((name, "auto") for name in defaults)]:
        plan = Plan.parse(name, workers=1 if name in ALONE else 2)
        samples = BATCH * plan.parts
        updates = batches * plan.workers // plan.parts
        entrant = Entrant(paceline(str(plan), hidden, data, samples, compute), samples, updates, compute == "auto")
        entrants[DEFAULT.format(name) if compute == "auto" else name] = entrant
    speeds = {}
    for name, entrant in entrants.items():
        few = max(2, entrant.updates // 10)
        # Untimed: the first run after another program has given its memory back pays for getting it again.
        entrant.seconds(few)
        if entrant.decides:
            entrant.seconds(entrant.updates)
        seconds = entrant.seconds(entrant.updates) - entrant.seconds(few)
        speeds[name] = round(entrant.samples * (entrant.updates - few) / seconds)
    return speeds


def title(size: str, neighbours: int) -> str:
    return f"{size} parameters" + (f", beside {neighbours} busy processes" if neighbours else "")


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and ranges, and the median of each round's share of its own ceiling."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(title(row["size"], row["neighbours"]) for row in rounds):
        mine = [row["speeds"] for row in rounds if title(row["size"], row["neighbours"]) == name]
        found[name] = {
            what: {
                "samples_per_second": round(median(each[what] for each in mine if what in each)),
                "range": spread(each[what] for each in mine if what in each),
                "of_the_ceiling": _share(what, "ceiling", mine),
                "of_the_ceiling_index_select": _share(what, "ceiling, index_select", mine),
                "rounds": sum(what in each for each in mine),
            }
            for what in dict.fromkeys(what for each in mine for what in each)
        }
    return found


def _share(what: str, of: str, rounds: list[dict[str, float]]) -> float:
    return median((each[what] / each[of] for each in rounds if what in each), 3)


def show(found: dict[str, Any]) -> None:
    for name, row in found.items():
        share = f"{row['of_the_ceiling']:.0%} of the ceiling, {row['rounds']} rounds"
        print(f"  {name:26} {row['samples_per_second']:>10,} samples/s  {share}", flush=True)


if __name__ == "__main__":
    main()
