"""The backend beside gloo: all_reduce of four lengths, and DDP on three networks, with 2, 3 and 4 processes.

Both are process groups of the same processes. They take turns, round after round; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import paceline.backend

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import write

LENGTHS = (1_000, 55_000, 1_000_000, 10_000_000)
SIZES = {"55 thousand": 64, "1 million": 660, "25 million": 4600}  # (784 + hidden + 10) * hidden
BATCH = 50
BACKENDS = ("paceline", "gloo")


def sums(groups: dict[str, Any], length: int, rounds: int, seconds: float) -> dict[str, float]:
    """Microseconds of an all_reduce, from a barrier on."""
    vector, found = torch.zeros(length), {name: [] for name in BACKENDS}
    for _ in range(rounds):
        for name, group in groups.items():
            count = _agreed(lambda group=group: dist.all_reduce(vector, group=group), group, seconds)
            for _ in range(count):
                begun = time.perf_counter()
                dist.all_reduce(vector, group=group)
                found[name].append((time.perf_counter() - begun) * 1e6)
    return {name: statistics.median(times) for name, times in found.items()}


def steps(groups: dict[str, Any], hidden: int, rounds: int, seconds: float) -> dict[str, float]:
    """Milliseconds of a step of DDP."""
    x, y = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    loss, found = nn.CrossEntropyLoss(), {name: [] for name in BACKENDS}
    do: dict[str, Any] = {}
    for name, group in groups.items():
        network = nn.Sequential(
            nn.Linear(784, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 10)
        )
        model = nn.parallel.DistributedDataParallel(network, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

        do[name] = step
    for _ in range(rounds):
        for name, group in groups.items():
            count = _agreed(do[name], group, seconds)
            begun = time.perf_counter()
            for _ in range(count):
                do[name]()
            found[name].append((time.perf_counter() - begun) / count * 1e3)
    return {name: statistics.median(times) for name, times in found.items()}


def _agreed(do: Any, group: Any, seconds: float) -> int:
    """How often to do it, after a few times untimed; the same for all."""
    begun = time.perf_counter()
    for _ in range(3):
        do()
    count = torch.tensor(max(3, int(seconds / (time.perf_counter() - begun) * 3)))
    dist.broadcast(count, 0, group=group)
    return min(2000, int(count))


def play(rank: int, ranks: int, store: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("paceline", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    groups = {"paceline": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    figures: dict[str, Any] = {
        "all_reduce, microseconds": {n: sums(groups, n, options.rounds, options.seconds) for n in LENGTHS}
    }
    if ranks == 2:
        figures["DDP, milliseconds a step"] = {
            name: steps(groups, hidden, options.rounds, options.seconds) for name, hidden in SIZES.items()
        }
    dist.barrier()
    dist.destroy_process_group()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each backend in each round")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        figures = play(options.rank, options.ranks[0], options.store, options)
        if options.rank == 0:
            print(json.dumps(figures))
        return
    found = {f"{ranks} processes": measure(ranks, options) for ranks in options.ranks}
    print(json.dumps(found, indent=1))
    load = os.getloadavg()[2]
    write(Path(__file__).parent, {"backend": paceline.backend.NAME, "load of 15 minutes": load, **found})


def measure(ranks: int, options: argparse.Namespace) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        common = ["--rounds", str(options.rounds), "--seconds", str(options.seconds), "--ranks", str(ranks)]
        command = [sys.executable, __file__, *common, "--store", f"{folder}/store", "--rank"]
        crew = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(ranks)]
        said = [process.communicate()[0] for process in crew]
        assert not any(process.returncode for process in crew)
    return json.loads(said[0])


if __name__ == "__main__":
    main()
