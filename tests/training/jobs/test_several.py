"""Several optimizers of one job, and optimizers that step by others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.errors import JobError, JobWarning, PlanError
from paceline.interfaces.testing.conformance import difference
from paceline.training.jobs.several import SeveralOptimizers, nested

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x))
        return result


def two(model: Net) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.Adam(model.body.parameters(), lr=0.01),
        torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9),
    ]


class Nested(torch.optim.Optimizer):
    """Steps by two optimizers that it holds, with no learning rate of its own."""

    def __init__(self, model: Net) -> None:
        self.inner = two(model)
        super().__init__(model.parameters(), {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for one in self.inner:
            one.step()


def job(optimizer: Callable[..., Any] = two, **fields: Any) -> pl.Job:
    made: dict[str, Any] = {"optimizer": optimizer, "batch_size": 20, "epochs": 3, **fields}
    return pl.Job(Net, (X, Y), nn.CrossEntropyLoss(), **made)


def by_hand(epochs: int = 3) -> nn.Module:
    """What PyTorch trains without Paceline, in the order of the samples that Paceline draws."""
    made = job()
    run = pl.train(made.with_(shuffle=False), folder=None)
    model = made.make_model()
    assert isinstance(model, Net)
    optimizers = two(model)
    for _ in range(epochs):
        for start in range(0, 120, 20):
            loss = nn.functional.cross_entropy(model(X[start : start + 20]), Y[start : start + 20])
            for each in optimizers:
                each.zero_grad()
            loss.backward()
            for each in optimizers:
                each.step()
    assert difference(run.model, model) < 1e-6
    return model


def test_each_optimizer_steps_its_own_parameters() -> None:
    by_hand()


@pytest.mark.parametrize(
    "plan", ["ring", "downpour:shards=2", "local_sgd", "easgd:mode=asynchronous", "gpipe", "hogwild"]
)
def test_every_kind_of_plan_trains_by_several(plan: str, tmp_path: Path) -> None:
    run = pl.train(job(), pl.Plan.parse(plan, 2), engine="virtual" if plan != "hogwild" else "local", folder=tmp_path)
    assert run.summary()["train_loss"] < 0.69
    assert run.record.job.optimizer.startswith("Adam(")
    assert " + SGD(" in run.record.job.optimizer
    if plan != "hogwild":
        assert pl.replay(run).matches


def test_the_server_has_the_state_of_all() -> None:
    """One worker at a server computes what one process does, whose optimizers remember."""
    one = pl.train(job(), "sequential", folder=None, engine="virtual")
    served = pl.train(job(), "downpour:workers=1,shards=2", folder=None, engine="virtual")
    assert difference(one.model, served.model) == 0


def test_a_schedule_and_a_checkpoint_reach_all(tmp_path: Path) -> None:
    made = job(lr_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=4, gamma=0.5))
    whole = pl.train(made, "ring:workers=2", folder=tmp_path / "whole")
    half = pl.train(made.with_(epochs=2), "ring:workers=2", folder=tmp_path / "half", checkpoint_every=0)
    assert half.path is not None
    again = pl.train(resume=half.path, epochs=3)
    assert again.summary()["parameters_sha256"] == whole.summary()["parameters_sha256"]


def test_state_from_a_constructor_is_kept() -> None:
    model = Net()
    made = SeveralOptimizers(
        [torch.optim.Adagrad(model.body.parameters()), torch.optim.SGD(model.head.parameters(), lr=0.1)]
    )
    assert made.owners == [0, 1]
    model(X).sum().backward()
    made.step()
    assert set(made.state) >= set(model.body.parameters())
    assert nested(made) == []


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda model: 2 * [torch.optim.SGD(model.parameters())], "have the same parameter"),
        (lambda model: [], "a list of nothing; give one optimizer, or several in a list"),
        (lambda model: [torch.optim.SGD(model.body.parameters()), "adam"], "a list of SGD, str; give one optimizer"),
        (lambda model: {"a": torch.optim.SGD(model.parameters())}, "returned dict, not a torch.optim.Optimizer"),
        (lambda model: [torch.optim.LBFGS(model.parameters())], "LBFGS evaluates the loss several times"),
    ],
)
def test_what_is_no_list_of_optimizers_is_refused(optimizer: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        pl.train(job(optimizer), folder=None, engine="virtual")


def test_an_optimizer_that_steps_by_others_is_noted_or_refused() -> None:
    with pytest.warns(
        JobWarning, match=r"Nested steps by optimizers of its own \(Adam, SGD\).*resumed run begins without"
    ):
        run = pl.train(job(Nested), "ring:workers=2", folder=None, engine="virtual")
    assert difference(run.model, pl.train(job(), "ring:workers=2", folder=None, engine="virtual").model) == 0
    with pytest.raises(
        PlanError, match=r"plan downpour cannot carry it from worker to worker; let optimizer= return a list"
    ):
        pl.train(job(Nested), "downpour:workers=2", folder=None)
