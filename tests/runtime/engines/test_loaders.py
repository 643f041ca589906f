"""Loader processes read ahead under every plan, and change no bits."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import paceline as pl
from paceline.interfaces.testing.jobs import SAMPLES, mlp
from paceline.training.jobs.job import Job

SAME_BITS = (
    "sequential:chunks=2", "ring", "tree", "halving_doubling", "hierarchical", "central", "ddp", "local_sgd:every=2",
    "parallel_sgd", "easgd:every=2", "diloco:every=2", "gossip", "sandblaster", "layers", "gpipe", "one_f_one_b",
    "interleaved", "zero_bubble", "pipedream", "spectrain", "ceiling", "tensor", "redundant", "zero", "one_weird_trick",
    "mesh",
)  # fmt: skip
REPLAYED = (
    "downpour",
    "downpour:shards=2",
    "ssp:bound=1",
    "dc_asgd",
    "gap_aware",
    "backup",
    "backup:backups=0",
    "parallel_sgd:mode=map_reduce,parts=3",
    "easgd:mode=asynchronous,every=2",
    "diloco:mode=asynchronous,every=2",
    "gossip:mode=asynchronous",
    "distbelief",
)
WITHOUT_ORDER = ("hogwild",)
#: These ask their loaders as another plan of the same method does.
ALIKE = {
    "tree",
    "halving_doubling",
    "hierarchical",
    "central",
    "parallel_sgd",
    "easgd:every=2",
    "diloco:every=2",
    "gpipe",
    "interleaved",
    "zero_bubble",
    "spectrain",
    "zero",
    "redundant",
    "one_weird_trick",
    "downpour:shards=2",
    "ssp:bound=1",
    "dc_asgd",
    "gap_aware",
    "backup:backups=0",
}


def _but_alike(plans: tuple[str, ...]) -> list[Any]:
    return [pytest.param(plan, marks=[pytest.mark.soak] * (plan in ALIKE)) for plan in plans]


class Set(Dataset):  # type: ignore[type-arg]
    """Samples with random augmentation; a file names each process that read any."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        (self.notes / f"read-{os.getpid()}").touch()
        noise = torch.randn(12, dtype=torch.float64) + random.random() + np.random.rand()
        return torch.full((12,), index / SAMPLES, dtype=torch.float64) + 0.1 * noise, torch.tensor(index % 5)


class Noting(nn.Module):
    """A layer that records each process that computes, and changes its input in place."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes

    def forward(self, x: Tensor) -> Tensor:
        (self.notes / f"computed-{os.getpid()}").touch()
        return x.mul_(0.5) if not x.requires_grad else x * 0.5


def _job(notes: Path, **rest: Any) -> Job:
    notes.mkdir()
    return Job(
        model=lambda: nn.Sequential(Noting(notes), mlp()),
        data=Set(notes),
        loss=F.cross_entropy,
        batch_size=14,
        epochs=2,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        seed=7,
        device="cpu",
        **rest,
    )


def _pids(notes: Path, what: str) -> set[int]:
    return {int(path.name.partition("-")[2]) for path in notes.glob(f"{what}-*")} - {os.getpid()}


def _check_who_read(notes: Path) -> None:
    read, computed = _pids(notes, "read"), _pids(notes, "computed")
    assert read
    assert computed
    assert not read & computed, "a worker read samples by itself"


@pytest.mark.filterwarnings("ignore:plan sandblaster makes its own steps")
@pytest.mark.parametrize("plan", _but_alike(SAME_BITS))
def test_loaders_read_for_plans_that_know_what_comes(plan: str, tmp_path: Path) -> None:
    workers = None if plan.startswith("sequential") else 4 if plan == "hierarchical" else 2
    found = []
    for loaders in (0, 1):
        notes = tmp_path / f"{loaders}"
        run = pl.train(_job(notes, num_workers=loaders), plan, workers, folder=None, max_updates=7)
        found.append(run.summary()["parameters_sha256"])
    _check_who_read(notes)
    assert found[0] == found[1]


@pytest.mark.parametrize("plan", _but_alike(REPLAYED))
def test_loaders_read_what_will_probably_be_leased(plan: str, tmp_path: Path) -> None:
    """A replay reads without loaders, and raises if its bits are not the recorded ones."""
    job = _job(tmp_path / "notes", num_workers=2)
    run = pl.train(job, plan, workers=3, folder=tmp_path / "runs")
    _check_who_read(tmp_path / "notes")
    assert pl.replay(run).matches


@pytest.mark.parametrize("plan", WITHOUT_ORDER)
def test_loaders_read_where_there_is_no_order(plan: str, tmp_path: Path) -> None:
    run = pl.train(_job(tmp_path / "notes", num_workers=1), plan, workers=2, folder=None)
    _check_who_read(tmp_path / "notes")
    assert run.summary()["samples"] == 2 * SAMPLES


def test_every_plan_is_in_these_tests() -> None:
    from paceline.plans.plan import RECIPES

    tested = {plan.partition(":")[0] for plan in (*SAME_BITS, *REPLAYED, *WITHOUT_ORDER)}
    others = {"table", "cannon", "experts", "per_layer", "ampnet"}  # which read as other pipelines do, and as tensor
    assert tested == set(RECIPES) - others
