"""What a job takes from a DataLoader, and what it refuses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

import paceline as pl
from paceline.errors import JobError
from paceline.training.jobs.built_ins import built_in
from paceline.training.jobs.loaders import LoaderData

# --- The built-in jobs: what a first comparison is made with ----------------------------------------------------------


@pytest.mark.parametrize("plan", [pytest.param("sequential", marks=pytest.mark.soak), "downpour:workers=2"])
def test_the_digits_are_learned_and_the_accuracy_does_not_fall_at_the_end(plan: str) -> None:
    run = pl.train(built_in("digits"), plan, engine="virtual", folder=None)
    curve: list[Any] = [evaluation["test_accuracy"] for evaluation in run.history]
    assert curve[-1] > 0.96
    assert max(curve) - curve[-1] < 0.01
    assert min(curve[-4:]) > 0.95  # at a constant learning rate, two evaluations differ by points


X, Y = torch.randn(30, 4), torch.arange(30) % 3
ALL = TensorDataset(X, Y)


def job(data: Any, **changes: Any) -> pl.Job:
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": partial(torch.optim.SGD, lr=0.1)}
    return pl.Job(lambda: nn.Linear(4, 3), data, **{**given, **changes})


def loader(**settings: Any) -> DataLoader[Any]:
    return DataLoader(ALL, **{"batch_size": 8, **settings})


def test_a_plain_loader_of_tensors_becomes_tensors() -> None:
    made = job(loader(shuffle=True, num_workers=2))
    assert isinstance(made.data, tuple)
    assert made.data[0] is X
    assert (made.batch_size, made.shuffle, made.num_workers) == (8, True, 2)
    assert job(loader()).shuffle is False


def test_a_part_of_tensors_becomes_its_rows() -> None:
    part, _ = random_split(ALL, [20, 10], torch.Generator().manual_seed(0))
    x, y = job(DataLoader(part, batch_size=5)).data
    assert torch.equal(x, X[part.indices])
    assert torch.equal(y, Y[part.indices])


@pytest.mark.parametrize(
    ("settings", "whole", "size"),
    [
        ({"sampler": SubsetRandomSampler([1, 2, 3])}, False, 8),
        ({"shuffle": True, "drop_last": True}, False, 8),
        ({"sampler": RandomSampler(ALL, replacement=True, num_samples=50)}, False, 8),
        ({"batch_size": None}, True, 1),
        ({"batch_size": 1, "batch_sampler": [[0, 1, 2], [3, 4, 5], [6]]}, False, 3),
        ({"batch_size": 1, "batch_sampler": [[0, 1, 2], [3], [6]]}, True, 1),
    ],
)
def test_everything_else_keeps_its_sampler(settings: dict[str, Any], whole: bool, size: int) -> None:
    made = job(loader(**settings))
    assert isinstance(made.data, LoaderData)
    assert (made.data.whole, made.batch_size, made.shuffle) == (whole, size, False)


def test_a_distributed_sampler_is_a_plain_one() -> None:
    ranks = DistributedSampler(ALL, num_replicas=3, rank=1, shuffle=True)
    made = job(loader(sampler=ranks))
    assert isinstance(made.data, tuple)
    assert made.shuffle
    last = job(loader(batch_sampler=BatchSampler(ranks, 8, True), batch_size=1))
    assert isinstance(last.data.sampler, RandomSampler)


def test_a_field_beside_a_loader_must_agree_with_it() -> None:
    with pytest.raises(JobError, match="batch_size=16, and data= is a DataLoader that says 8"):
        job(loader(), batch_size=16)
    assert job(loader(), batch_size=8).batch_size == 8
    assert job(loader()).with_(batch_size=16).batch_size == 16  # as --batch-size does


def test_a_compiled_model_is_unwrapped_and_remembers_how() -> None:
    made = pl.Job(
        torch.compile(nn.Linear(4, 3), backend="aot_eager", dynamic=True),
        (X, Y),
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    assert isinstance(made.model, nn.Linear)
    assert made.compile_options == {"backend": "aot_eager", "dynamic": True}
    inside = job(ALL).with_(model=lambda: torch.compile(nn.Linear(4, 3), fullgraph=True))
    assert list(inside.make_model().state_dict()) == ["weight", "bias"]
    assert inside.compile_options == {"fullgraph": True}
