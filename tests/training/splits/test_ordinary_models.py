"""Ordinary models that once were computed wrongly, or ended in an error that was no refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import PlanError
from paceline.interfaces.api.train import train
from paceline.interfaces.callbacks import Callback, Training
from paceline.interfaces.testing.conformance import same_numbers
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.record import Evaluation


class _Scaled(nn.Module):
    """Multiplies what a layer makes by a vector, which several workers of a grid need the same part of."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave, self.scale = nn.Linear(12, 16), nn.Linear(16, 5), nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.enter(x)) * self.scale)


class _Variational(nn.Module):
    """Draws outside of its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread, self.leave = nn.Linear(12, 6), nn.Linear(12, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.mean(x), self.spread(x)
        return self.leave(mean + torch.randn_like(spread) * torch.exp(0.5 * spread))


class _Padded(nn.Module):
    """PyTorch's attention with a mask of what is padding, whose weights nobody asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.attend = nn.Linear(3, 8), nn.MultiheadAttention(8, 2, 0.1, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 4, 3)
        padding = torch.cat([torch.zeros_like(x[:, :1, 0]), x[:, 1:, 0] - 1.0], 1) > 0
        x = self.enter(x)
        return self.head((x + self.attend(x, x, x, key_padding_mask=padding)[0]).mean(1))


class _InPlace(nn.Module):
    """Changes what it has computed, and goes on with the same name."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.body, self.head = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x.mul_(0.7).tanh_()
        y = self.body(x)
        y += x
        nn.functional.relu_(y)
        return self.head(y)


class _Hyper(nn.Module):
    """A layer that is given a vector makes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.seed, self.make, self.leave = nn.Parameter(torch.randn(4)), nn.Linear(4, 72), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.tanh(nn.functional.linear(x, self.make(self.seed).view(6, 12))))


class _Growing(nn.Module):
    """Hands on a list to which it adds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 4), nn.Linear(16, 4), nn.Linear(20, 5)])

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            found.append(torch.tanh(layer(torch.cat(found, 1))))
        return found[-1]


class _Language(nn.Module):
    """The first layer is the last one, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.scores = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.scores.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(torch.tanh(self.body(torch.tanh(self.words(x)))))


class _Masked(nn.Module):
    """Attention of its own, with a mask that is the same for all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.ModuleList([nn.Linear(3, 8) for _ in range(3)])
        self.leave, self.head = nn.Linear(8, 3), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 4, 3)
        q, k, v = (each(x).view(-1, 4, 2, 4).transpose(1, 2) for each in self.enter)
        mask = (x[:, :, 0] > -2.0)[:, None, None, :]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head((x + self.leave(mixed.transpose(1, 2).flatten(2))).mean(1))


def test_a_mask_for_all_heads_goes_with_each() -> None:
    job = JOBS["mlp"]().with_(model=lambda: _Masked().double())
    same_numbers(job, Plan.parse("tensor:workers=2"), "virtual", updates=4)
    made = set_up(job, Plan.parse("tensor:workers=2"), "virtual").split
    assert made is not None
    assert made.program.ways["leave"] == "rows", "heads lie where they were made"
    moved = [step.value for step in made.program.forward if step.movement.travels]
    assert moved == ["leave", "head"]


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (_Scaled, "cannon:workers=4"),
        (_Scaled, "tensor:workers=3"),
        (_Variational, "zero:workers=3"),
        (_Variational, "zero:workers=2,stage=1"),
        (_Variational, "tensor:workers=2"),
        (_Padded, "tensor:workers=2"),
        (_Padded, "zero:workers=2"),
        (_InPlace, "tensor:workers=2"),
        (_InPlace, "one_weird_trick:workers=2"),
        (_InPlace, "gpipe:workers=2"),
        (_Hyper, "cannon:workers=4"),
        (_Hyper, "per_layer:ways=*:rows"),
        (_Hyper, "tensor:workers=3"),
        (_Growing, "ampnet:workers=2,active=1"),
        (_Growing, "tensor:workers=2"),
        (_Language, "mesh:layers=2,inside=2,data=1,cuts=body"),
    ],
)
def test_same_numbers(model: type[nn.Module], plan: str) -> None:
    same_numbers(JOBS["mlp"]().with_(model=lambda: model().double()), Plan.parse(plan), "virtual", updates=6)


class _Answer(dict[str, Tensor]):
    """What a model of transformers returns: a dictionary with attributes."""

    def __getattr__(self, name: str) -> Tensor:
        return self[name]


class _Answering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor, labels: Tensor) -> _Answer:
        scores = self.head(torch.tanh(self.body(x)))
        return _Answer(loss=nn.functional.cross_entropy(scores, labels), scores=scores)


@pytest.mark.parametrize("plan", ["tensor:workers=2", "zero:workers=2", "gpipe:workers=2"])
def test_a_model_may_return_a_dictionary_of_its_own_kind(plan: str) -> None:
    job = JOBS["mlp"]().with_(model=lambda: _Answering().double(), loss=None, step=lambda m, batch: m(*batch).loss)
    same_numbers(job, Plan.parse(plan), "virtual", updates=4)


def test_a_pattern_passes_over_layers_that_cannot_be_split_so() -> None:
    """A layer that is named in full is refused instead."""
    same_numbers(JOBS["mlp"](), Plan.parse("per_layer:workers=4,ways=*:columns"), "virtual", updates=3)
    for ways, says in (("1:columns", "1 cannot be split by columns"), ("*:heads", "0 cannot be split by heads")):
        with pytest.raises(PlanError, match=says):
            train(JOBS["mlp"](), f"per_layer:ways={ways}", engine="virtual", folder=None)


@pytest.mark.parametrize("plan", ["tensor:workers=2", "zero:workers=2", "mesh:layers=1,inside=2,data=1", "ampnet"])
def test_evaluations_see_the_parts_that_every_worker_wrote(plan: str, tmp_path: Path) -> None:
    job = JOBS["mlp"]()
    job = job.with_(test=job.data, evaluate_every=5, epochs=2)
    found = [
        [each["test_loss"] for each in train(job, plan, engine=engine, folder=tmp_path).history]
        for engine in ("virtual", "local")
    ]
    assert len(found[0]) == 2
    if plan != "ampnet":
        assert found[1] == pytest.approx(found[0], rel=1e-12)
    assert all(torch.isfinite(torch.tensor(losses)).all() for losses in found)


class _Told(Callback):
    """Keeps the losses that it is told of while the run goes on."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        self.losses.append(evaluation.metrics["test_loss"])


@pytest.mark.parametrize("plan", ["tensor:workers=3", "zero:workers=4,data=2"])
def test_callbacks_read_snapshots_that_all_workers_have_written(plan: str, tmp_path: Path) -> None:
    job, told = JOBS["mlp"](), _Told()
    job = job.with_(test=job.data, evaluate_every=1)
    train(job, plan, folder=tmp_path, callbacks=[told])
    wanted = [each["test_loss"] for each in train(job, plan, engine="virtual", folder=tmp_path).history]
    assert told.losses == pytest.approx(wanted, rel=1e-12)
