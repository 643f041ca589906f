"""What a worker's memory has to hold of a net whose weights are most of it, under Adam: peaks of real processes."""

from __future__ import annotations

import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import paceline

WIDTH, LAYERS, BATCH = 1536, 3, 32
PLANS = (
    "sequential", "ring:workers=2", "zero:workers=2,stage=1", "zero:workers=2,stage=2", "zero:workers=2",
    "tensor:workers=2", "per_layer:workers=2,ways=*:columns", "cannon:workers=4",
)  # fmt: skip


def net() -> nn.Module:
    parts = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 10))


def measure_memory() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(4 * BATCH, WIDTH, generator=generator), torch.randint(10, (4 * BATCH,), generator=generator)
    job = paceline.Job(
        net, data, F.cross_entropy, optimizer=partial(torch.optim.Adam, lr=1e-4), batch_size=BATCH, device="cpu"
    )
    weights = 4 * sum(p.numel() for p in net().parameters())
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for plan in PLANS:
            run = paceline.train(job, plan, folder=Path(tempfile.gettempdir()) / "paceline-splits")
            found[plan] = [round(peak / weights, 2) for peak in run.summary()["peak_memory"]]
            print(plan, found[plan], flush=True)
    return {"bytes of all weights": weights, "peak of each worker, in all weights": found}
