"""Speed of two stages on two cores: beside one process with 1 and 2 threads, and PyTorch's own pipelining over gloo.

    python benchmarks/pipelines/run.py [--rounds 5] [--net wide,recurrent] [--micro 2,4,8,16,32]

Two networks: eight wide linear layers, which threads share well; and four recurrent layers, which they do not.

    --loud    on a machine that is never quiet: the best of all rounds counts, and what else ran is written down

What is compared is run in turn, round after round. Speed is the slope between a short and a long training. Before and
after each, the machine is watched for a moment while it should be idle: what ran beside other work is thrown away and
run again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import read, write

SGD = partial(torch.optim.SGD, lr=0.01)
LOSS = nn.CrossEntropyLoss()
SHORT, LONG = 4, 20  # updates, for 8 micro-batches
BUSY, PATIENCE = 0.15, 40  # share of one core that others may take; tries
Seconds = Callable[[int], float]


@dataclass(frozen=True)
class Net:
    layers: Callable[[], list[nn.Module]]
    shape: tuple[int, ...]  # of a sample
    micro: int  # samples of a micro-batch
    half: int  # pieces of the first stage


class Recurrent(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.lstm(x)[0]
        return result


class Last(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -1]


def wide() -> list[nn.Module]:
    torch.manual_seed(0)
    pairs = [part for _ in range(8) for part in (nn.Linear(512, 512), nn.ReLU())]
    return [*pairs, nn.Linear(512, 10)]


def recurrent() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Recurrent(64, 64), Recurrent(64, 64), Recurrent(64, 64), Recurrent(64, 64), Last(), nn.Linear(64, 10)]


NETS = {"wide": Net(wide, (512,), 64, 8), "recurrent": Net(recurrent, (24, 64), 16, 2)}


def data(net: str, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, *NETS[net].shape, generator=generator), torch.randint(
        10, (samples,), generator=generator
    )


# --- one process ----------------------------------------------------------------------------------------------------


def plain_loop(net: str, batch: int, pieces: int, threads: int, updates: int, done: Any) -> None:
    torch.set_num_threads(threads)
    model, (x, y) = nn.Sequential(*NETS[net].layers()), data(net, 4 * batch)
    optimizer = SGD(model.parameters())
    begun = 0.0
    for update in range(updates + 2):
        if update == 2:
            begun = time.perf_counter()
        at = update % 4 * batch
        optimizer.zero_grad()
        parts = zip(x[at : at + batch].chunk(pieces), y[at : at + batch].chunk(pieces), strict=True)
        for xs, ys in parts:
            (LOSS(model(xs), ys) / pieces).backward()
        optimizer.step()
    done.put(time.perf_counter() - begun)


def plain(net: str, batch: int, pieces: int, threads: int) -> Seconds:
    return lambda updates: together([(plain_loop, (net, batch, pieces, threads, updates))])


# --- PyTorch's pipelining -------------------------------------------------------------------------------------------


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].contiguous()


class Straight(nn.Module):
    """What PyTorch's pipelining sends must be contiguous, and what a batch-first LSTM makes is not, both ways."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Straight.apply(x)
        return result


def torch_stage(rank: int, net: str, name: str, micro: int, place: str, updates: int, done: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    batch, layers = NETS[net].micro * micro, NETS[net].layers()
    half = NETS[net].half
    part = nn.Sequential(*((*layers[:half], Straight()) if rank == 0 else (Straight(), *layers[half:])))
    optimizer, (x, y) = SGD(part.parameters()), data(net, 4 * batch)
    kind = {"gpipe": ScheduleGPipe, "one_f_one_b": Schedule1F1B}[name]
    schedule = kind(PipelineStage(part, rank, 2, torch.device("cpu")), n_microbatches=micro, loss_fn=LOSS)
    begun = 0.0
    for update in range(updates + 2):
        if update == 2:
            dist.barrier()
            begun = time.perf_counter()
        at = update % 4 * batch
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x[at : at + batch])
        else:
            schedule.step(target=y[at : at + batch])
        optimizer.step()
    dist.barrier()
    done.put(time.perf_counter() - begun)
    dist.destroy_process_group()


def torch_pipeline(net: str, name: str, micro: int) -> Seconds:
    def seconds(updates: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            place = str(Path(folder) / "meet")
            return together([(torch_stage, (rank, net, name, micro, place, updates)) for rank in range(2)])

    return seconds


def together(work: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> float:
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    pool = [context.Process(target=what, args=(*args, done)) for what, args in work]
    for process in pool:
        process.start()
    found = [done.get(timeout=120) for _ in pool]
    for process in pool:
        process.join()
    return max(found)


# --- Paceline -------------------------------------------------------------------------------------------------------


def paceline(net: str, plan: str, micro: int) -> Seconds:
    batch = NETS[net].micro * micro
    job = pl.Job(
        model=lambda: nn.Sequential(*NETS[net].layers()),
        data=data(net, 4 * batch),
        loss=LOSS,
        optimizer=SGD,
        batch_size=batch,
        epochs=10**6,
    )

    def seconds(updates: int) -> float:
        found: float = pl.train(job, plan, folder=None, max_updates=updates + 2).summary()["seconds"]
        return found

    return seconds


# --- measuring ------------------------------------------------------------------------------------------------------


def others(seconds: float = 0.15) -> float:
    """The share of one core that is used while we do nothing."""

    def busy() -> float:
        words = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return (sum(words) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")

    before, start = busy(), time.perf_counter()
    time.sleep(seconds)
    return (busy() - before) / (time.perf_counter() - start)


class Loud(Exception):
    """Somebody else used the machine all the time."""


class Watch:
    """Runs what is to be timed when nobody else runs; or, where it is loud, notes how much did."""

    def __init__(self, loud: bool) -> None:
        self.loud, self.seen = loud, list[float]()

    def __call__(self, seconds: Seconds, updates: int) -> float:
        for _ in range(PATIENCE):
            before = others()
            if before > BUSY and not self.loud:
                time.sleep(0.5)
                continue
            found = seconds(updates)
            after = others()
            self.seen.append((before + after) / 2)
            if after <= BUSY or self.loud:
                return found
        raise Loud


def slope(watch: Watch, seconds: Seconds, micro: int) -> float:
    """Seconds of an update."""
    short, long = (max(2, updates * 8 // micro) for updates in (SHORT, LONG))
    return (watch(seconds, long) - watch(seconds, short)) / (long - short)


def measure(net: str, micro: int, rounds: int, watch: Watch) -> dict[str, Any]:
    batch = NETS[net].micro * micro
    entrants: dict[str, Seconds] = {
        "one process, 1 thread": plain(net, batch, 1, 1),
        "one process, 1 thread, in micro-batches": plain(net, batch, micro, 1),
        "one process, 2 threads": plain(net, batch, 1, 2),
        "one process, 2 threads, in micro-batches": plain(net, batch, micro, 2),
    }
    for name in ("gpipe", "one_f_one_b"):
        entrants[name] = paceline(net, f"{name}:workers=2,micro_batches={micro},cuts={NETS[net].half}", micro)
        entrants[f"PyTorch's {name}"] = torch_pipeline(net, name, micro)
    found: dict[str, list[float]] = {name: [] for name in entrants}
    for number in range(rounds):
        for name, seconds in entrants.items():
            try:
                found[name].append(slope(watch, seconds, micro))
            except Loud:
                print(f"  round {number}: {name} was never alone on the machine", flush=True)
    chosen = min if watch.loud else statistics.median
    medians = {name: chosen(times) for name, times in found.items() if times}
    single = {name: value for name, value in medians.items() if name.startswith("one process")}
    return {
        "milliseconds_per_update": {name: round(1e3 * value, 3) for name, value in medians.items()},
        "all": {name: [round(1e3 * value, 3) for value in times] for name, times in found.items()},
        "chosen": "best of the rounds" if watch.loud else "median of the rounds",
        "others_took": round(statistics.mean(watch.seen), 2),  # of one core, while nothing of ours ran
        "half_of_a_micro_batch_ms": round(1e3 * min(single.values()) / micro / 2, 3),
        "best_single": min(single, key=single.__getitem__),
        "ideal": round(2 * micro / (micro + 1), 3),
        "speedup_over_best_1_thread": _over(medians, {k: v for k, v in single.items() if "1 thread" in k}),
        "speedup_over_best_single": _over(medians, single),
        "over_pytorch": {
            name: round(medians[f"PyTorch's {name}"] / medians[name], 3)
            for name in ("gpipe", "one_f_one_b")
            if name in medians and f"PyTorch's {name}" in medians
        },
    }


def _over(medians: dict[str, float], single: dict[str, float]) -> dict[str, float]:
    best = min(single.values())
    return {name: round(best / value, 3) for name, value in medians.items() if not name.startswith("one process")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loud", action="store_true")
    parser.add_argument("--net", default="wide,recurrent")
    parser.add_argument("--micro", default="2,4,8,16,32")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    figures: dict[str, Any] = read("speed.json").get("networks", {})
    for net in options.net.split(","):
        for micro in map(int, options.micro.split(",")):
            found = measure(net, micro, options.rounds, Watch(options.loud))
            figures.setdefault(net, {})[str(micro)] = {"rounds": options.rounds, **found}
            print(net, micro, {key: value for key, value in found.items() if key != "all"}, flush=True)
            write({"networks": figures}, "speed.json")


if __name__ == "__main__":
    main()
