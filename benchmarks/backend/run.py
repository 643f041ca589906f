"""The backend beside gloo and MPICH: all_reduce of four lengths, and DDP on three networks, with 2, 3 and 4 processes.

Gloo and paceline are process groups of the same processes and take turns, round after round, as do plain loops that
never meet (the ceiling) and one process alone. MPICH (`pip install mpi4py mpich`, left out where it is missing) has
processes of its own, between them. Medians are reported.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import paceline.backend  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import in_turn, median, neighbours, write
from harness import seconds as seconds_of

LENGTHS = (1_000, 55_000, 1_000_000, 10_000_000)
SIZES = {"55 thousand": 64, "1 million": 660, "25 million": 4600}  # (784 + hidden + 10) * hidden
BATCH = 50


def median_us(do: Callable[[], Any], count: int) -> float:
    return 1e6 * median(seconds_of(do) for _ in range(count))


def sums(groups: dict[str, Any], length: int, rounds: int, seconds: float) -> dict[str, float]:
    """Microseconds of an all_reduce; the median of rounds, each the median of its calls."""
    vector = torch.zeros(length)

    def median_of_calls(group: Any) -> float:
        do = partial(dist.all_reduce, vector, group=group)
        return median_us(do, agreed(do, seconds))

    found = in_turn({name: partial(median_of_calls, group) for name, group in groups.items()}, rounds)
    return {name: median(times, 1) for name, times in found.items()}


def agreed(do: Callable[[], Any], seconds: float) -> int:
    """How often to do it, after a few times untimed; the same for all."""
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(3):
        do()
    count = torch.tensor(max(3, min(3000, int(seconds / (time.perf_counter() - begun) * 3))))
    dist.broadcast(count, 0)
    return int(count)


def silent(state, bucket):  # type: ignore[no-untyped-def]
    """DDP's hook that communicates nothing; DDP takes no annotation that is text."""
    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def step_of(hidden: int, batch: int, group: Any = None, hook: Callable[..., Any] | None = None) -> Callable[[], None]:
    """One step of training; by DDP over a group, or alone."""
    x, y, loss = torch.randn(batch, 784), torch.randint(10, (batch,)), nn.CrossEntropyLoss()
    model: nn.Module = nn.Sequential(
        nn.Linear(784, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 10)
    )
    if group is not None:
        model = nn.parallel.DistributedDataParallel(model, process_group=group)
        if hook is not None:
            model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step


def speeds(groups: dict[str, Any], hidden: int, rounds: int, seconds: float) -> dict[str, float]:
    """Samples per second, of all processes together."""
    ranks, alone = dist.get_world_size(), {}
    ways = {name: (step_of(hidden, BATCH, group), BATCH * ranks) for name, group in groups.items()}
    ways["DDP with a hook that does nothing"] = step_of(hidden, BATCH, groups["paceline"], silent), BATCH * ranks
    ways["ceiling"] = step_of(hidden, BATCH), BATCH * ranks
    for threads in (1, 2):
        for batch in (BATCH, BATCH * ranks):
            alone[f"one process, {threads} threads, batches of {batch}"] = threads, step_of(hidden, batch), batch
    found: dict[str, list[float]] = {name: [] for name in (*ways, *alone)}
    for _ in range(rounds):
        for name, (do, samples) in ways.items():
            count = agreed(do, seconds)
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(count):
                do()
            found[name].append(samples * count / (time.perf_counter() - begun))
        for name, (threads, do, samples) in alone.items():
            if dist.get_rank() == 0:
                torch.set_num_threads(threads)
                count = max(3, int(seconds / (median_us(do, 5) / 1e6)))
                begun = time.perf_counter()
                for _ in range(count):
                    do()
                found[name].append(samples * count / (time.perf_counter() - begun))
                torch.set_num_threads(1)
            dist.barrier()  # the others sleep in it meanwhile
    return {name: round(median(each)) for name, each in found.items() if each}


def play(rank: int, ranks: int, store: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("paceline", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    groups = {"paceline": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if options.what == "sums":
        figures = {str(n): sums(groups, n, options.rounds, options.seconds) for n in LENGTHS}
    else:
        sizes = {name: SIZES[name] for name in options.sizes}
        figures = {name: speeds(groups, hidden, options.rounds, options.seconds) for name, hidden in sizes.items()}
    dist.barrier()
    dist.destroy_process_group()
    return figures


def play_mpich(options: argparse.Namespace) -> dict[str, Any]:
    import numpy as np
    from mpi4py import MPI

    world, figures = MPI.COMM_WORLD, {}
    for length in LENGTHS:
        vector = np.zeros(length, dtype=np.float32)
        do = lambda vector=vector: world.Allreduce(MPI.IN_PLACE, vector)  # noqa: E731
        world.Barrier()
        count = max(3, min(3000, int(options.seconds / (median_us(do, 3) / 1e6))))
        count = world.bcast(count)
        figures[str(length)] = {"MPICH": round(median_us(do, count), 1)}
    return figures if world.Get_rank() == 0 else {}


def measure(ranks: int, what: str, options: argparse.Namespace) -> dict[str, Any]:
    common = [sys.executable, __file__, "--rounds", str(options.rounds), "--seconds", str(options.seconds)]
    common += ["--ranks", str(ranks), "--what", what, "--sizes", *options.sizes]
    if what == "mpich":
        command = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks), *common, "--rank", "0"]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        command = [*common, "--store", f"{folder}/store", "--rank"]
        pool = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(ranks)]
        said = [process.communicate()[0] for process in pool]
        assert not any(process.returncode for process in pool)
    return json.loads(said[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each way in each round")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), help="of DDP's networks")
    parser.add_argument("--what", choices=("sums", "steps", "mpich"), help="only this")
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0], help="busy processes beside DDP")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        figures = play_mpich(options) if options.what == "mpich" else play(
            options.rank, options.ranks[0], options.store, options
        )  # fmt: skip
        if options.rank == 0 and figures:
            print(json.dumps(figures))
        return
    found: dict[str, Any] = {}
    if options.what != "steps":
        for ranks in options.ranks:
            figures = measure(ranks, "sums", options)
            if importlib.util.find_spec("mpi4py") and shutil.which("mpiexec", path=Path(sys.executable).parent):
                for length, mpich in measure(ranks, "mpich", options).items():
                    figures[length] |= mpich
            found[f"all_reduce with {ranks} processes, microseconds"] = figures
            print(json.dumps(figures, indent=1), flush=True)
    if options.what in (None, "steps"):
        for count in options.neighbours:
            beside = f", beside {count} busy processes" if count else ""
            with neighbours(count):
                found[f"DDP with 2 processes, samples per second{beside}"] = measure(2, "steps", options)
    print(json.dumps(found, indent=1))
    write({"load of 1 minute": os.getloadavg()[0], **found})


if __name__ == "__main__":
    main()
