"""compute="fused" under the plans: the same training as by autograd, and a replay to the same bits."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from paceline.errors import JobError, JobWarning
from paceline.interfaces.api.train import train
from paceline.interfaces.testing.conformance import check_run, difference
from paceline.kernels import build
from paceline.kernels.fused import Fused
from paceline.plans.plan import Plan
from paceline.runtime.engines import setup
from paceline.runtime.engines.setup import Placement
from paceline.training.gradients import fused_replica as compute
from paceline.training.gradients.replica import CPU
from paceline.training.jobs.job import Job
from tests.kernels.played import played


def make_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4))


def a_job(dtype: torch.dtype = torch.float64) -> Job:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(120, 1, 6, 6, generator=generator, dtype=dtype)
    y = torch.randint(4, (120,), generator=generator)
    return Job(
        model=lambda: make_model().to(dtype),
        data=(x, y),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        batch_size=24,
        epochs=2,
    )


@pytest.mark.parametrize("plan", ["sequential", "sequential:chunks=3", "ring:workers=3"])
def test_same_numbers_as_autograd(plan: str) -> None:
    """Where the plan fixes the order, to rounding: parameters and batch-norm's statistics."""
    runs = [train(a_job(), plan, engine="virtual", folder=None, compute=compute) for compute in ("autograd", "fused")]
    assert difference(runs[0].model, runs[1].model) < 1e-9
    assert [run.summary()["compute"] for run in runs] == ["autograd", "fused"]


@pytest.mark.parametrize(
    "plan",
    [
        "ring:workers=2",
        "downpour:workers=2,shards=2",
        pytest.param("sequential", marks=pytest.mark.soak),
        pytest.param("easgd:workers=2", marks=pytest.mark.soak),
    ],
)
def test_real_workers_and_their_replay(plan: str) -> None:
    run = train(a_job(torch.float32), plan, folder=None, compute="fused", max_updates=8)
    check_run(run, Plan.parse(plan))


@pytest.mark.parametrize("on_device", [True, False])
def test_on_a_device_that_the_cpu_stands_in_for(on_device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are stored on the device, or in the host's memory and copied to it."""

    def on_played(module: nn.Module, loss: nn.Module, optimizer: None, batch: int, threads: int) -> Fused:
        return played(module, loss, optimizer, batch)

    def placed(job: Job, plan: Plan, together: bool = False) -> Placement:
        return Placement((CPU,) * plan.workers, on_device)

    runs = [train(a_job(), "ring:workers=2", engine="virtual", folder=None, max_updates=6)]
    monkeypatch.setattr(compute, "fuse", on_played)
    monkeypatch.setattr(setup, "place", placed)
    monkeypatch.setattr(setup, "fused_if_possible", lambda job, *rest: job)
    runs.append(train(a_job(), "ring:workers=2", engine="virtual", folder=None, compute="fused", max_updates=6))
    assert difference(runs[0].model, runs[1].model) < 1e-9


@pytest.mark.parametrize(
    ("changes", "plan", "message"),
    [
        ({}, "ddp:workers=2", "autograd included"),
        ({"precision": "bf16-mixed"}, "sequential", "own precision, not in bf16-mixed"),
        ({"loss": None, "step": lambda model, batch: model(batch[0]).sum()}, "sequential", "needs loss="),
        ({"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.RReLU())}, "sequential", "RReLU"),
    ],
)
def test_what_cannot_be_fused_is_refused_before_the_start(changes: dict[str, object], plan: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        train(a_job(torch.float32).with_(**changes), plan, folder=None, compute="fused")


def test_without_a_compiler_pytorch_trains_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    build.compiler.cache_clear()
    try:
        with pytest.warns(JobWarning, match=r"no C\+\+ compiler was found.*this run does"):
            run = train(
                a_job(torch.float32), "sequential", engine="virtual", folder=None, compute="fused", max_updates=2
            )
    finally:
        build.compiler.cache_clear()
    assert run.summary()["compute"] == "autograd"
