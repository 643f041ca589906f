"""Jobs around a model that a test wants cut into stages."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from paceline.interfaces.testing.jobs import SAMPLES
from paceline.training.jobs.job import Job

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def data(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(5, (SAMPLES,), generator=generator)


def job_of(model: nn.Module, *shape: int, **rest: object) -> Job:
    given = {"loss": nn.CrossEntropyLoss(), "optimizer": SGD, "batch_size": 14, "epochs": 3, "seed": 7, **rest}
    return Job(model=model.double(), data=data(*shape), **given)  # type: ignore[arg-type]
