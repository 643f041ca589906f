"""The loss that a run reports is the mean over its workers, weighted as their gradients are."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paceline as pl
from paceline.runtime.report.curves import loss_curve
from paceline.runtime.report.reading import open_all
from paceline.runtime.runs.progress import LiveStatus, Progress
from paceline.runtime.runs.trace import Kind, Row, Trace
from paceline.training.jobs.job import Job

UNEVEN = torch.randint(5, (36,), generator=torch.Generator().manual_seed(2))
UNEVEN[torch.rand(36, generator=torch.Generator().manual_seed(3)) < 0.5] = 0
UNEVEN[:4] = 0  # nothing to divide by in the first chunk, of three workers or of two
X = torch.randn(36, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _mean(output: Tensor, target: Tensor) -> Tensor:
    """A loss that is NaN, and whose gradient is, where no target counts."""
    return F.cross_entropy(output, target, ignore_index=0, reduction="sum") / (target != 0).sum()


def _job(**changes: Any) -> Job:
    usual: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double(),
        "data": (X, UNEVEN),
        "loss": _mean,
        "loss_denominator": lambda batch: (batch[1] != 0).sum(),
        "batch_size": 12,
        "epochs": 2,
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "shuffle": False,
        "device": "cpu",
    }
    return Job(**usual | changes)


SAME = (
    "sequential:chunks=2", "ring", "tree:workers=3", "halving_doubling", "hierarchical", "central", "gpipe",
    "one_f_one_b", "zero_bubble", "layers", "tensor", "redundant", "zero", "zero:stage=3", "one_weird_trick", "mesh",
)  # fmt: skip


def _same(run: pl.Run, alone: pl.Run) -> None:
    assert run.record.summary is not None
    assert run.record.summary.not_finite == 0
    np.testing.assert_allclose(run.trace.loss_curve()[1], alone.trace.loss_curve()[1], rtol=1e-12)
    for one, other in zip(run.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("plan", SAME)
def test_all_synchronous_plans_report_the_loss_of_one_process(plan: str) -> None:
    _same(pl.train(_job(), plan, engine="virtual", folder=None), pl.train(_job(), engine="virtual", folder=None))


@pytest.mark.parametrize("plan", ["ring", "ddp", *(pytest.param(each, marks=pytest.mark.soak) for each in SAME)])
def test_worker_processes_report_it_as_well(plan: str) -> None:
    _same(pl.train(_job(), plan, folder=None), pl.train(_job(), engine="virtual", folder=None))


def test_a_schedule_that_follows_the_loss_follows_this_one() -> None:
    def plateau(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.05)

    job = _job(lr_scheduler=plateau, epochs=4)
    _same(pl.train(job, "tree:workers=3", engine="virtual", folder=None), pl.train(job, engine="virtual", folder=None))


def test_the_report_and_the_bar_show_it(tmp_path: Path) -> None:
    run = pl.train(_job(), "tree:workers=3", engine="virtual", folder=tmp_path)
    assert run.path is not None
    np.testing.assert_allclose(loss_curve(open_all([run.path])[0]).values, run.trace.loss_curve()[1], rtol=1e-12)
    rows = [
        Row(Kind.COMPUTE, worker, 0, end=worker, samples=4, value=loss, weight=weight)
        for worker, (loss, weight) in enumerate([(1.0, 1.0), (4.0, 2.0), (math.nan, 0.0)])
    ]
    status = LiveStatus()
    parts = tuple(Trace.of([row]).rows for row in rows)
    status.update(Progress(1, 2, 12, 1.0, None, 3, (), (), (), (0, 0, 0), True, 0, 0.0, False, parts))
    assert status.loss == 3.0
    assert Trace.of(rows).loss_curve()[1].tolist() == [3.0]
    assert Trace.of(rows).not_finite() == 0


def test_older_traces_weigh_by_samples() -> None:
    rows = [Row(Kind.COMPUTE, worker, 0, samples=worker + 1, value=float(worker)) for worker in range(2)]
    assert Trace.of(rows).loss_curve()[1].tolist() == [2 / 3]
