"""Where plans that split layers win, on this machine.

    python benchmarks/splits/run.py bytes       one_weird_trick and ring: bytes of AlexNet, and counted on a small one
    python benchmarks/splits/run.py link        redundant and others, over a link whose messages take 1 ms
    python benchmarks/splits/run.py trees       ampnet and training in step: a tree LSTM, seconds to a loss
    python benchmarks/splits/run.py kills       SIGKILL to each worker of each plan: seconds until it is reported
    python benchmarks/splits/run.py memory      peaks of workers under zero, tensor, cannon and others
    python benchmarks/splits/run.py published   numbers that Cannon's algorithm sends, against its bound
    python benchmarks/splits/run.py tables      300 random tables of ways on random networks
    python benchmarks/splits/run.py mutants     2,000 changed derivations
    python benchmarks/splits/run.py equal       every recipe, 2 to 8 workers, six kinds of models, three optimizers
    python benchmarks/splits/run.py bounded     which plans train a net under a bound on each worker's memory
    python benchmarks/splits/run.py mixtures    experts against a dense net of equal operations

Every part writes its figures to result_PART.json.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paceline
from paceline.algorithms.splits.derivation import Program, derive
from paceline.algorithms.splits.recipes import OneWeirdTrick
from paceline.runtime.runs.trace import Kind
from paceline.training.splits.describing import describe
from paceline.training.splits.exchanging import LinkMover
from paceline.training.stages.tracing import TracedCall, trace

sys.path.insert(0, str(Path(__file__).parents[1]))
from bounded import measure_bounded
from equal import measure_equal
from harness import write
from kills import measure_kills
from memory import measure_memory
from mixtures import measure_mixtures
from published import measure_published
from tables import measure_mutants, measure_tables
from trees import measure_trees

HERE = Path(__file__).parent
MIB = 1 << 20
RUNS = Path(tempfile.gettempdir()) / "paceline-splits"
WORKERS, BATCHES = (2, 4, 8), (32, 128, 512, 1024)


def alexnet(scale: int = 1, side: int = 6, classes: int = 1000) -> nn.Module:
    """Return Krizhevsky's net of one tower ("One weird trick", 2014); `scale` divides its widths."""
    widths = [width // scale for width in (64, 192, 384, 256, 256, 4096)]
    one, two, three, four, five, wide = widths
    return nn.Sequential(
        nn.Conv2d(3, one, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(one, two, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(two, three, 3, padding=1), nn.ReLU(), nn.Conv2d(three, four, 3, padding=1), nn.ReLU(),
        nn.Conv2d(four, five, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Dropout(), nn.Linear(five * side * side, wide), nn.ReLU(),
        nn.Dropout(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, classes),
    )  # fmt: skip


def program_of(model: Callable[[], nn.Module], shape: tuple[int, ...], workers: int) -> Program:
    """Derive the program without memory for numbers: on PyTorch's meta device."""
    with torch.device("meta"):
        module, batch = model(), (torch.empty(shape), torch.empty(shape[:1], dtype=torch.long))
    call, tensors = TracedCall.of(lambda net, b: F.cross_entropy(net(b[0]), b[1]), batch)
    found = describe(trace(module, call), tensors)
    recipe = OneWeirdTrick()
    nodes = recipe.prepare(found.nodes, workers)
    return derive(nodes, found.inputs, found.outputs, found.needs, workers, recipe.choose)


def job(model: Callable[[], nn.Module], shape: tuple[int, ...], batch: int, classes: int, **rest: Any) -> paceline.Job:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * batch, *shape, generator=generator)
    y = torch.randint(classes, (2 * batch,), generator=generator)
    settings: dict[str, Any] = {"loss": F.cross_entropy, "optimizer": partial(torch.optim.SGD, lr=0.01), **rest}
    return paceline.Job(model=model, data=(x, y), batch_size=batch, epochs=50, device="cpu", **settings)


def sent(made: paceline.Job, plan: str, workers: int) -> int:
    """Return how many bytes a worker sends for an update, as its trace has counted them."""
    run = paceline.train(made, plan, workers=workers, folder=RUNS, max_updates=3)
    rows = run.trace.of_kind(Kind.COLLECTIVE)
    return int(rows["bytes"][(rows["update"] == 1) & (rows["worker"] == 0)].sum())


def measure_bytes() -> dict[str, Any]:
    whole = sum(p.numel() for p in alexnet().parameters())
    rows = []
    for workers in WORKERS:
        ring = 4 * 2 * whole * (workers - 1) // workers
        for batch in BATCHES:
            program = program_of(alexnet, (batch, 3, 224, 224), workers)
            trick = 4 * max(sum(program.numbers(place).values()) for place in range(workers))
            rows.append({"workers": workers, "batch": batch, "ring": ring, "one_weird_trick": trick})
            print(f"{workers} workers, batches of {batch}: ring {ring / MIB:.1f} MiB, trick {trick / MIB:.1f} MiB")
    small = job(partial(alexnet, 8, 1, 10), (3, 64, 64), 32, 10)
    counted = {plan: sent(small, plan, 2) for plan in ("ring", "one_weird_trick")}
    derived = program_of(partial(alexnet, 8, 1, 10), (32, 3, 64, 64), 2)
    counted["derived"] = 4 * sum(derived.numbers(0).values())
    print("counted on a small one:", counted)
    return {"parameters": whole, "rows": rows, "counted": counted}


LATE = 1e-3


class Late:
    """A step whose worker gets every message a millisecond late."""

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        if not hasattr(LinkMover, "on_time"):
            LinkMover.on_time = LinkMover._exchange  # type: ignore[attr-defined]
            LinkMover._exchange = _late  # type: ignore[method-assign]
        return F.cross_entropy(model(batch[0]), batch[1])


def _late(self: LinkMover, *args: Any) -> Tensor:
    time.sleep(LATE)
    found: Tensor = self.on_time(*args)  # type: ignore[attr-defined]
    return found


def convolutions() -> nn.Module:
    blocks = [part for _ in range(4) for part in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
    ends = nn.MaxPool2d(4), nn.Flatten(), nn.Linear(1024, 10)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), *blocks, *ends)


def dense() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip


def pace(made: paceline.Job, plan: str, workers: int, updates: int) -> float:
    """Return milliseconds for an update, the first five left out."""
    run = paceline.train(made, plan, workers=workers, folder=RUNS, max_updates=updates)
    rows = run.trace.of_kind(Kind.APPLY)
    ends = sorted(int(end) for end in rows["end"][rows["worker"] == 0])
    return (ends[-1] - ends[5]) / (len(ends) - 6) / 1e6


def measure_link() -> dict[str, Any]:
    nets = {"convolutions": (convolutions, (3, 32, 32), 16), "dense": (dense, (1, 28, 28), 64)}
    found: dict[str, Any] = {}
    for name, (model, shape, batch) in nets.items():
        made = job(model, shape, batch, 10, loss=None, step=Late())
        plans = ("tensor", "redundant", "one_weird_trick")
        rounds = [{plan: pace(made, plan, 2, 40) for plan in plans} for _ in range(3)]
        found[name] = {plan: sorted(each[plan] for each in rounds) for plan in plans}
        ratio = [each["tensor"] / each["redundant"] for each in rounds]
        found[name]["tensor / redundant"] = sorted(ratio)
        print(name, {plan: round(statistics.median(ms), 2) for plan, ms in found[name].items()})
    return {"milliseconds a message": 1, "workers": 2, "milliseconds an update": found}


def main() -> None:
    warnings.simplefilter("ignore")
    parts = {
        "bytes": measure_bytes, "link": measure_link, "trees": measure_trees, "kills": measure_kills,
        "tables": measure_tables, "memory": measure_memory, "published": measure_published, "equal": measure_equal,
        "bounded": measure_bounded, "mutants": measure_mutants, "mixtures": measure_mixtures,
    }  # fmt: skip
    for name in sys.argv[1:] or parts:
        write(parts[name](), f"result_{name}.json")


if __name__ == "__main__":
    main()
