"""Reads a folder of shards on one core: batches of 100 by number, against a DataLoader; and resumes anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from harness import in_turn, median
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.training.data.shards import Shards
from paceline.training.data.source import Order
from paceline.training.jobs.built_ins import BUILT_IN
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Arrow, Idx

SIZE, ROUNDS = 100, 5


def measure(folder: Path, images: Path) -> dict[str, Any]:
    """Return samples per second of each way to read 60,000 x 784 bytes in a shuffled order, and milliseconds."""
    torch.set_num_threads(1)
    source = Idx(images / "train-images-idx3-ubyte.gz", images / "train-labels-idx1-ubyte.gz")
    prepare(Recipe(source, {"x": "image", "y": "label"}, shard_rows=8192), folder / "shards")
    shards = Shards(folder / "shards")
    tensors = TensorDataset(*shards.batch(torch.arange(len(shards)), 0))
    ways: dict[str, Callable[[], Iterator[Any]]] = {
        "Shards": lambda: by_number(shards),
        "tensors in RAM, by number": lambda: (
            tuple(t.index_select(0, at) for t in tensors.tensors) for at in _order(shards).split(SIZE)
        ),
        "DataLoader over Shards": lambda: iter(DataLoader(shards, SIZE, shuffle=True)),  # type: ignore[arg-type]
        "DataLoader over tensors": lambda: iter(DataLoader(tensors, SIZE, shuffle=True)),
    }
    taken = in_turn({name: partial(through, way) for name, way in ways.items()}, ROUNDS)
    rates = {
        name: {what: [len(shards) / one[at] for one in each] for at, what in enumerate(("wall", "cpu"))}
        for name, each in taken.items()
    }
    ratios = [a / b for a, b in zip(rates["Shards"]["cpu"], rates["DataLoader over tensors"]["cpu"], strict=True)]
    return {
        "samples per second of wall": {
            name: {"median": round(median(r["wall"])), "best": round(max(r["wall"]))} for name, r in rates.items()
        },
        "samples per second of CPU": {
            name: {"median": round(median(r["cpu"])), "best": round(max(r["cpu"]))} for name, r in rates.items()
        },
        "Shards over DataLoader, CPU": {"median": round(median(ratios), 1), "least": round(min(ratios), 1)},
        "resume ms": resume(folder / "shards"),
        "mnist-cnn": epochs(folder, images),
        "order": orders(folder),
    }


def through(way: Callable[[], Iterator[Any]]) -> tuple[float, float]:
    """Return the seconds and CPU seconds of one pass."""
    begun = time.perf_counter(), time.process_time()
    for _ in way():
        pass
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def by_number(shards: Shards) -> Iterator[Any]:
    for at in _order(shards).split(SIZE):
        yield shards.batch(at, 0)


def _order(shards: Shards) -> torch.Tensor:
    return Order(len(shards), 0, True).span(1, 0, len(shards))


def resume(folder: Path) -> dict[str, dict[str, float]]:
    """Return milliseconds from nothing to the first batch at random positions of random epochs."""
    chance, wall, cpu = np.random.default_rng(0), [], []
    for _ in range(40):
        epoch, position = int(chance.integers(0, 9)), int(chance.integers(0, 59_900))
        begun = time.perf_counter(), time.process_time()
        shards = Shards(folder)
        shards.batch(Order(len(shards), 0, True).span(epoch, position, position + SIZE), epoch)
        wall.append(1e3 * (time.perf_counter() - begun[0]))
        cpu.append(1e3 * (time.process_time() - begun[1]))
    return {
        name: {"median": round(median(each), 2), "greatest": round(max(each), 2)}
        for name, each in (("wall", wall), ("cpu", cpu))
    }


def epochs(folder: Path, images: Path) -> dict[str, Any]:
    """Return the seconds of an epoch of generated `mnist-cnn` on shards and on tensors, in turns."""
    job = replace(BUILT_IN["mnist-cnn"](str(images)), epochs=1, test=None, evaluate_every=None)
    x, y = job.data
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1).numpy()), 784), "y": y.numpy()})
    write_arrow(table, folder / "images.arrow")
    prepare(Recipe(Arrow(folder / "images.arrow"), {"x": "x", "y": "y"}), folder / "images")
    shards = Shards(folder / "images")
    kinds: dict[str, Any] = {"shards": shards, "tensors": shards.batch(torch.arange(len(shards)), 0)}
    if x.ndim > 2:
        job = replace(job, model=Reshaped(job.model, x.shape[1:]))

    def epoch(data: Any) -> float:
        run = paceline.train(replace(job, data=data), "sequential", compute="fused", folder=None)
        return float(run.summary()["seconds"])

    seconds = in_turn({name: partial(epoch, data) for name, data in kinds.items()}, ROUNDS)
    ratios = [a / b for a, b in zip(seconds["shards"], seconds["tensors"], strict=True)]
    return {
        "seconds": {name: [round(one, 3) for one in each] for name, each in seconds.items()},
        "shards over tensors": {
            "of medians": round(median(seconds["shards"]) / median(seconds["tensors"]), 3),
            "each": [round(one, 3) for one in ratios],
        },
    }


class Reshaped:
    """Makes a model whose input is rows of numbers."""

    def __init__(self, model: Any, shape: Any) -> None:
        self.model, self.shape = model, tuple(shape)

    def __call__(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Unflatten(1, self.shape), *self.model())


def orders(folder: Path) -> dict[str, Any]:
    """Return how many different parameters come of the same samples, whoever reads them: it must be one."""
    shards = Shards(folder / "shards")
    some = torch.arange(5000)
    tensors = shards.batch(some, 0)
    table = pa.table(
        {"x": pa.FixedSizeListArray.from_arrays(pa.array(tensors[0].reshape(-1).numpy()), 784), "y": tensors[1].numpy()}
    )
    write_arrow(table, folder / "some.arrow")
    prepare(Recipe(Arrow(folder / "some.arrow"), {"x": "x", "y": "y"}), folder / "some")
    data, found = Shards(folder / "some"), {}
    for plan in ("sequential:chunks=2", "ring:workers=2"):
        for engine in ("local", "virtual"):
            for loaders in (0, 2):
                job = paceline.Job(
                    model=partial(torch.nn.Linear, 784, 10), data=data, step=step,
                    optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=SIZE, num_workers=loaders,
                )  # fmt: skip
                run = paceline.train(job, plan, engine=engine, folder=None)
                found[f"{plan}, {engine}, {loaders} loaders"] = run.summary()["parameters_sha256"]
    return {"ways": list(found), "different parameters": len(set(found.values()))}


def write_arrow(table: pa.Table, file: Path) -> None:
    """Write rows into a file of Arrow, which keeps that all vectors have one length."""
    with pa.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)


def step(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0].to(torch.float32) / 255), batch[1])
