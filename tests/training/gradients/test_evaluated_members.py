"""Members of a stack are evaluated as each would be alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import RunFailed
from paceline.training.data.opening import open_source
from paceline.training.gradients import fastest_stack as fastest_stack
from paceline.training.gradients.evaluate import evaluate
from paceline.training.gradients.fastest_stack import Evaluation
from paceline.training.jobs.job import Job


def net(norm: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5) if norm else nn.Dropout(0.4), nn.Tanh(), nn.Linear(5, 3))


def made(norm: bool = False, **rest: Any) -> tuple[list[Job], list[nn.Module]]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(90, 6, generator=generator), torch.randint(0, 3, (90,), generator=generator)
    common = {
        "model": partial(net, norm),
        "data": (x[:50], y[:50]),
        "test": (x[50:], y[50:]),
        "optimizer": torch.optim.SGD,
        **rest,
    }
    jobs = [Job(loss=nn.CrossEntropyLoss(), seed=seed, batch_size=10, device="cpu", **common) for seed in range(5)]
    return jobs, [job.make_model().train() for job in jobs]


def alone(job: Job, module: nn.Module) -> dict[str, float]:
    assert job.test is not None
    return evaluate(job, module, open_source(job.test, job.seed, "test"))


@pytest.mark.parametrize("norm", [False, True])
def test_generated_code_gives_the_figures_of_pytorch(norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norm computes something else in evaluation mode, so PyTorch goes on with it."""
    monkeypatch.setattr(fastest_stack, "COMPILING", 0.0)
    jobs, modules = made(norm)
    evaluation = Evaluation()
    for _ in range(2):
        found = evaluation.figures(jobs, modules, 3)
        assert (evaluation.forward is None) == norm
        for figures, job, module in zip(found, jobs, modules, strict=True):
            assert figures == pytest.approx(alone(job, module), rel=1e-5)
            assert module.training


def test_an_evaluation_that_raises_costs_its_own_member_only() -> None:
    class Sometimes(nn.Module):
        def __init__(self, fails: bool) -> None:
            super().__init__()
            self.fails, self.layer = fails, nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.fails and not self.training:
                raise ValueError("out of range")
            found: Tensor = self.layer(x)
            return found

    jobs, _ = made()
    modules: list[nn.Module] = [Sometimes(place in (0, 3)) for place in range(5)]
    found = Evaluation().figures(jobs, modules, 0)
    assert [isinstance(each, RunFailed) for each in found] == [True, False, False, True, False]


def test_metrics_that_members_share_are_not_called_at_once() -> None:
    class Counted:
        def __init__(self) -> None:
            self.count = 0

        def update(self, output: Tensor, target: Tensor) -> None:
            self.count += len(target)

        def compute(self) -> float:
            return float(self.count)

        def reset(self) -> None:
            self.count = 0

    jobs, modules = made(metrics={"counted": Counted()})
    found = Evaluation().figures(jobs, modules, 0)
    assert [each["counted"] for each in found if isinstance(each, dict)] == [40.0] * 5
