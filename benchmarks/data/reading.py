"""Reads a folder of shards on one core: batches of 100 by number, against a DataLoader; and resumes anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline.data.order import Order
from paceline.data.shards import Shards
from paceline.preparation.prepare import prepare
from paceline.preparation.recipe import Recipe
from paceline.preparation.sources import Idx

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
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            begun = time.perf_counter()
            for _ in way():
                pass
            taken[name].append(len(shards) / (time.perf_counter() - begun))
    ratios = [a / b for a, b in zip(taken["Shards"], taken["DataLoader over tensors"], strict=True)]
    return {
        "samples/s": {name: {"median": round(median(each)), "best": round(max(each))} for name, each in taken.items()},
        "Shards over DataLoader": {"median": median(ratios), "least": min(ratios)},
        "resume ms": resume(folder / "shards"),
    }


def by_number(shards: Shards) -> Iterator[Any]:
    for at in _order(shards).split(SIZE):
        yield shards.batch(at, 0)


def _order(shards: Shards) -> torch.Tensor:
    return Order(len(shards), 0, True).span(1, 0, len(shards))


def resume(folder: Path) -> dict[str, float]:
    """Return milliseconds from nothing to the first batch at random positions of random epochs."""
    chance, taken = np.random.default_rng(0), []
    for _ in range(40):
        epoch, position = int(chance.integers(0, 9)), int(chance.integers(0, 59_900))
        begun = time.perf_counter()
        shards = Shards(folder)
        shards.batch(Order(len(shards), 0, True).span(epoch, position, position + SIZE), epoch)
        taken.append(1e3 * (time.perf_counter() - begun))
    return {"median": median(taken), "p95": float(np.quantile(taken, 0.95)), "greatest": max(taken)}
