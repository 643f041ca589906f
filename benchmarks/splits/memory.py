"""The memory of workers with parts of layers: what is derived before the start, against peaks of real processes."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import paceline
from paceline.plans.plan import Plan
from paceline.runtime.engines.dividing import chunks_each
from paceline.runtime.engines.setup import set_up
from paceline.training.splits.planning import peaks_of_parts
from paceline.training.stages.planning import examples_of

MIB = 1 << 20
WIDTH, LAYERS, BATCH = 1024, 4, 64
LARGE = "memory=8192"  # a bound that all keep: workers then return freed memory at once
PLANS = (
    "zero:workers=2,stage=1", "zero:workers=2,stage=2", "zero:workers=2,stage=3", "zero:workers=4,stage=1",
    "zero:workers=4,stage=2", "zero:workers=4,stage=3", "tensor:workers=2", "tensor:workers=4",
    "per_layer:workers=2,ways=*:columns", "cannon:workers=4", "one_weird_trick:workers=2", "tensor:workers=4,data=2",
)  # fmt: skip
CONVOLUTIONS = ("redundant:workers=2", "tensor:workers=2", "one_weird_trick:workers=2", "zero:workers=2")


def dense() -> nn.Module:
    parts = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 10))


def convolutions() -> nn.Module:
    blocks = [part for _ in range(3) for part in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())]
    ends = nn.MaxPool2d(4), nn.Flatten(), nn.Linear(4096, 10)
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), *blocks, *ends)


def job(net: Callable[[], nn.Module], shape: tuple[int, ...]) -> paceline.Job:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(4 * BATCH, *shape, generator=generator), torch.randint(10, (4 * BATCH,), generator=generator)
    optimizer = partial(torch.optim.Adam, lr=1e-4)
    return paceline.Job(net, data, F.cross_entropy, optimizer=optimizer, batch_size=BATCH, device="cpu")


def derived(made: paceline.Job, plan: Plan) -> list[int]:
    setup = set_up(made, plan, "virtual")
    assert setup.split is not None
    example, chunks = examples_of(setup.job, setup.source, setup.agenda)[0], chunks_each(plan, setup.agenda)
    return peaks_of_parts(setup.job, setup.module, setup.split, example, chunks)


def measure_memory() -> dict[str, Any]:
    nets = {"dense": (job(dense, (WIDTH,)), PLANS), "convolutions": (job(convolutions, (3, 32, 32)), CONVOLUTIONS)}
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (made, plans) in nets.items():
            for text in plans:
                plan = Plan.parse(f"{text},{LARGE}")
                run = paceline.train(made, plan, folder=Path(tempfile.gettempdir()) / "paceline-splits")
                peaks, wanted = run.summary()["peak_memory"], derived(made, plan)
                wanted = [wanted[place % len(wanted)] for place in range(len(peaks))]
                row = {
                    "derived": [round(each / MIB, 1) for each in wanted],
                    "measured": [round(each / MIB, 1) for each in peaks],
                    "measured / derived": [round(p / w, 3) for p, w in zip(peaks, wanted, strict=True)],
                }
                found[f"{name}, {text}"] = row
                print(name, text, row, flush=True)
    return {"bytes of the dense net's weights": 4 * sum(p.numel() for p in dense().parameters()), "peaks": found}
