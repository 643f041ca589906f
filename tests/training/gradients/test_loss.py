"""Losses that a model brings itself, and scaled losses in float16."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import paceline as pl
from paceline.algorithms.agenda import Chunk
from paceline.errors import JobError, PlanError
from paceline.interfaces.testing.conformance import difference
from paceline.training.gradients.device_gradients import ScaledAutograd
from paceline.training.gradients.replica import Replica, to_device

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": X[index], "labels": Y[index], "id": f"row {index}"}


class Output(NamedTuple):
    loss: Tensor
    logits: Tensor


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor) -> Output:
        logits = self.head(x)
        return Output(nn.functional.cross_entropy(logits, labels), logits)


class Keyed(OwnLoss):
    def forward(self, x: Tensor, labels: Tensor) -> Any:
        return OrderedDict(super().forward(x, labels)._asdict())


def job(model: Any, data: Any = Rows, **changes: Any) -> pl.Job:
    return pl.Job(model, data, optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=8, **changes)


class Bare(OwnLoss):
    def forward(self, x: Tensor, labels: Tensor) -> Any:
        return super().forward(x, labels).loss


def test_a_model_may_return_its_loss_alone() -> None:
    bare, named = (pl.train(job(model), engine="virtual", folder=None) for model in (Bare, OwnLoss))
    assert difference(bare.model, named.model) == 0.0


@pytest.mark.parametrize("model", [OwnLoss, Keyed])
@pytest.mark.parametrize("plan", ["sequential", "ring:workers=2"])
def test_a_models_own_loss_trains_and_is_evaluated(model: type[nn.Module], plan: str) -> None:
    mine = pl.train(job(model, test=Rows), plan, engine="virtual", folder=None)
    plain = pl.Job(
        lambda: nn.Linear(4, 3),
        (X, Y),
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=8,
        test=(X, Y),
    )
    theirs = pl.train(plain, plan, engine="virtual", folder=None)
    assert difference(mine.model, theirs.model) < 1e-6
    for name in ("test_loss", "test_accuracy"):
        assert mine.summary()[name] == pytest.approx(theirs.summary()[name], abs=1e-6)


def test_a_model_without_a_loss_says_what_to_give() -> None:
    with pytest.raises(JobError, match=r"neither loss= nor step= is given, and the model returned Tensor"):
        pl.train(job(lambda: nn.Linear(4, 3), (X,)), engine="virtual", folder=None)


class Steep(nn.Module):
    """Its gradient times 2**16 is too large for float16, and times 2**12 is not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight) * 0.01


def test_a_scale_that_is_too_large_is_lowered_and_the_gradient_stays() -> None:
    x = torch.full((2, 4), 1.5)
    made = pl.Job(
        Steep,
        (x, x),
        step=lambda model, batch: (model(batch[0]).float() * 800).mean(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        precision="16-mixed",
        batch_size=2,
    )
    replica, chunk = Replica(made, made.make_model(), (), gradients=ScaledAutograd()), Chunk(0, 0, 0, 0, 2, 1.0)
    for _ in range(2):
        replica.backward(chunk, (x, x), 0.5)
    (gradient,) = replica.take()
    assert gradient is not None
    assert torch.allclose(gradient, torch.full((4, 1), 12.0), rtol=2e-3)
    assert replica.take() == [None]


def test_float16_trains_and_replays_and_names_plans_that_cannot(tmp_path: Any) -> None:
    made = job(OwnLoss, precision="16-mixed")
    run = pl.train(made, "ring:workers=2", folder=tmp_path)
    assert pl.replay(run).matches
    assert difference(run.model, pl.train(job(OwnLoss), "ring:workers=2", folder=None).model) < 1e-2
    with pytest.raises(PlanError, match=r"cannot scale the loss as precision='16-mixed' needs it"):
        pl.train(made, "gpipe:workers=2", folder=None)


def test_a_compiled_model_trains_in_every_worker_and_keeps_its_names() -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    compiled = torch.compile(plain, backend="aot_eager")
    made = pl.Job(compiled, (X, Y), nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own, while it compiles
        run = pl.train(made, "ring:workers=2", folder=None)
    assert list(run.model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    eager = pl.train(made.with_(model=plain, compile_options=None), "ring:workers=2", folder=None)
    assert difference(run.model, eager.model) < 1e-6


def test_a_batch_keeps_its_types_on_its_way_to_a_device() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(2)])
    batch = [{"a": (torch.ones(1), "word")}, Output(torch.ones(1), torch.ones(2)), packed]
    moved = to_device(batch, torch.device("cpu"))
    assert isinstance(moved, list)
    assert moved[0]["a"][1] == "word"
    assert [type(each) for each in moved] == [dict, Output, nn.utils.rnn.PackedSequence]
