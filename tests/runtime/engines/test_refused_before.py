"""What a worker would refuse is refused before anything starts: no process, and no folder of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import paceline as pl
from paceline.errors import JobError, PlanError
from paceline.training.jobs.job import Job

X, Y = torch.randn(24, 6, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 5


class Plain(torch.optim.Optimizer):
    """Steps like SGD; `remember` says what it keeps of a parameter."""

    def __init__(self, parameters: Any, remember: Callable[[dict[str, Any]], object]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.remember = remember

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.remember(self.state[p])
                p.sub_(p.grad, alpha=0.1)


class Asking(Plain):
    def step(self, closure: Any) -> None:  # type: ignore[override]
        super().step()


def _a_word(state: dict[str, Any]) -> None:
    state["word"] = "warm"


def _later(state: dict[str, Any]) -> None:
    state["steps"] = state.get("steps", 0) + 1
    if state["steps"] > 1:
        state["more"] = 1.0


class Shrinking(Sampler):  # type: ignore[type-arg]
    """Gives fewer samples in each epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 24 - 4 * self.epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5))


def _job(**changes: Any) -> Job:
    usual: dict[str, Any] = {
        "model": _net,
        "data": (X, Y),
        "loss": nn.CrossEntropyLoss(),
        "epochs": 2,
        "device": "cpu",
        "batch_size": 12,
        "optimizer": partial(torch.optim.SGD, lr=0.1),
    }
    return Job(**usual | changes)


def _shrinking() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=12, sampler=Shrinking())


CASES: tuple[tuple[str, dict[str, Any], type[Exception], str], ...] = (
    ("spectrain", {}, PlanError, "predicts weights from the optimizer's momentum, and SGD has none"),
    ("spectrain", {"optimizer": torch.optim.Adam}, PlanError, "Adam has none"),
    ("ring", {"optimizer": partial(Asking, remember=_later)}, JobError, "Asking evaluates the loss several times"),
    ("downpour", {"optimizer": partial(Plain, remember=_a_word)}, JobError, "remembers 'word' as a str"),
    ("ssp", {"optimizer": partial(Plain, remember=_later)}, JobError, r"remembers \['more'\] only from a later step"),
    ("ring", {"data": _shrinking()}, JobError, "the sampler gave 20 samples in epoch 1, and 24 in the first"),
    ("distbelief:workers=4,cuts=1+2+3", {}, PlanError, "a stage without parameters"),
)


@pytest.mark.parametrize(("plan", "changes", "kind", "words"), CASES)
def test_it_is_refused_before_a_folder_is_made(
    plan: str, changes: dict[str, Any], kind: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        pl.train(_job(**changes), plan, folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("plan", ["downpour", "ssp", "dc_asgd", "backup:workers=3"])
def test_an_optimizer_may_leave_parameters_alone_under_a_server(plan: str) -> None:
    """It failed in the workers, by a StopIteration."""

    def some(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(model.parameters())[:2], lr=0.1, momentum=0.9)

    run = pl.train(_job(optimizer=some), plan, engine="virtual", folder=None)
    before, after = list(run.job.make_model().parameters()), list(run.model.parameters())
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [False, False, True, True, True, True]


class Placed(nn.Module):
    """Adds rows of a buffer, which may be laid out otherwise."""

    def __init__(self, places: Tensor) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        self.register_buffer("places", places)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.three(torch.tanh(self.two(torch.tanh(self.one(x)) + self.places[0])))
        return made


@pytest.mark.parametrize("plan", ["ddp", "tensor", "interleaved:each=1", "gpipe"])
@pytest.mark.parametrize(
    "places", [torch.ones(3, 6), torch.ones(3, 1).expand(3, 6), torch.ones(1, 3, 6).transpose(0, 1)[:, 0]]
)
def test_a_buffer_may_be_transposed_expanded_and_indexed(plan: str, places: Tensor) -> None:
    job = _job(model=partial(Placed, places), epochs=1)
    run = pl.train(job, plan, engine="local" if plan == "ddp" else "virtual", folder=None)
    assert run.record.summary is not None
