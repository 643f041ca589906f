"""A worker computes a gradient with one gradient in memory, not with the last one beside it."""

from __future__ import annotations

import gc
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline

X, Y = torch.randn(64, 37), torch.randn(64, 53)
SHAPE = (53, 37)


@pytest.mark.parametrize(
    "plan", ["sequential", "ring", "local_sgd:every=1", "gossip", "downpour", "easgd:mode=asynchronous"]
)
def test_the_previous_gradient_is_freed_before_the_next_is_computed(plan: str, tmp_path: Path) -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        alive = sum(isinstance(each, torch.Tensor) and each.shape == SHAPE for each in gc.get_objects())
        with (tmp_path / str(os.getpid())).open("a") as file:
            file.write(f"{alive}\n")
        return nn.functional.mse_loss(output, target)

    job = paceline.Job(
        partial(nn.Linear, 37, 53), (X, Y), loss, optimizer=partial(torch.optim.SGD, lr=0.01), batch_size=16, epochs=2
    )
    paceline.train(job, plan, None if plan == "sequential" else 2, folder=None)
    (tmp_path / str(os.getpid())).unlink(missing_ok=True)  # what this process tried before the run
    counts = [[int(line) for line in file.read_text().split()] for file in tmp_path.iterdir()]
    assert counts
    assert all(each == [each[0]] * len(each) for each in counts), counts
