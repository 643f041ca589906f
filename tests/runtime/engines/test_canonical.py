"""Canonical plans: one job has one SHA-256, whoever computes what, on every engine."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import PlanError
from paceline.interfaces.testing.conformance import check_run
from paceline.interfaces.testing.jobs import JOBS
from paceline.runtime.runs.trace import Kind

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def data(*shape: int, samples: int = 61) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, *shape, generator=generator), torch.randint(5, (samples,), generator=generator)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 17), nn.Tanh(), nn.Dropout(0.2), nn.Linear(17, 5))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(108, 5)
    )


def flipped(batch: Any) -> Any:
    x, y = batch
    return torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x), y


def job(model: Any = mlp, *shape: int, **rest: Any) -> pl.Job:
    given = {"optimizer": SGD, "loss": nn.CrossEntropyLoss(), "batch_size": 14, "epochs": 2, "seed": 3, "device": "cpu"}
    return pl.Job(model=model, data=data(*(shape or (12,))), **{**given, **rest})


def sha(job: pl.Job, plan: str, engine: str = "virtual", **rest: Any) -> str:
    return str(pl.train(job, plan, engine=engine, folder=None, **rest).summary()["parameters_sha256"])


WAYS = (
    "ring:workers=1,canonical=8", "ring:workers=2,canonical=8", "ring:workers=3,canonical=8",
    "ring:sizes=3+1,canonical=8", "ring:sizes=1+4+2,canonical=8", "tree:workers=5,canonical=8",
    "halving_doubling:workers=4,canonical=8", "halving_doubling:workers=7,canonical=8", "central:workers=3,canonical=8",
    "hierarchical:workers=4,canonical=8",
)  # fmt: skip
SETTINGS: dict[str, pl.Job] = {
    "clipped": job(gradient_clip_norm=0.05),
    "accumulated": job(accumulate_grad_batches=2, batch_size=9),
    "normalised": job(cnn, 2, 6, 6, batch_transform=flipped),
    "scheduled": job(lr_scheduler=partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=1)),
    "weighted": job(
        loss=nn.CrossEntropyLoss(ignore_index=0), loss_denominator=lambda batch: float((batch[1] != 0).sum())
    ),
    "bfloat16": job(precision="bf16-mixed"),
    "small batches": job(batch_size=5),
}


@pytest.mark.filterwarnings("ignore:a batch of 5 samples cannot be divided into 8 chunks. some are empty")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_job_has_one_result_whoever_holds_which_chunks(name: str) -> None:
    expected = sha(SETTINGS[name], "sequential:canonical=8", max_updates=5)
    assert {plan: sha(SETTINGS[name], plan, max_updates=5) for plan in WAYS} == dict.fromkeys(WAYS, expected)


def test_without_it_they_differ() -> None:
    assert len({sha(job(), plan) for plan in ("sequential:chunks=3", "ring:workers=2", "ring:workers=3")}) == 3


def test_what_is_not_finite_is_left_out_chunk_by_chunk() -> None:
    x, y = data(12)
    x[20] = float("nan")
    skipping = job(on_nan="skip").with_(data=(x, y))
    expected = sha(skipping, "sequential:canonical=8")
    assert {sha(skipping, plan) for plan in WAYS[1:4]} == {expected}
    with pytest.raises(pl.RunFailed):
        sha(job().with_(data=(x, y)), "ring:workers=3,canonical=8")


@pytest.mark.parametrize("plan", ["ring:workers=2,canonical=8", "tree:sizes=2+1,canonical=5"])
def test_processes_have_the_bits_of_one(plan: str) -> None:
    chunks = plan.rpartition("=")[2]
    run = pl.train(job(cnn, 2, 6, 6), plan, folder=None)
    check_run(run, pl.Plan.parse(plan))
    assert run.summary()["parameters_sha256"] == sha(job(cnn, 2, 6, 6), f"sequential:canonical={chunks}")


@pytest.mark.parametrize("plan", ["ring:workers=2,canonical=2", "ring:sizes=3+1,canonical=8"])
def test_generated_code_has_the_same_bits_on_any_number_of_workers(plan: str) -> None:
    fused = job(compute="fused")
    chunks = plan.rpartition("=")[2]
    assert sha(fused, plan, "local") == sha(fused, f"sequential:canonical={chunks}")


class Slow:
    """The first worker that computes a chunk takes 40 milliseconds more for each, from its twelfth chunk on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.chunks, self.parent = folder, 0, os.getpid()
        self.slow: bool | None = None

    def __call__(self, batch: Any) -> Any:
        if os.getpid() == self.parent:  # which computes a first batch before the start
            return batch
        if self.slow is None:
            try:
                (self.folder / "slow").touch(exist_ok=False)
                self.slow = True
            except FileExistsError:
                self.slow = False
        self.chunks += 1
        if self.slow and self.chunks > 12:
            time.sleep(0.04)
        return batch


def test_a_worker_that_becomes_slow_gives_chunks_away_and_no_bit_changes(tmp_path: Path) -> None:
    slowed = job(batch_transform=Slow(tmp_path), epochs=4)
    run = pl.train(slowed, "ring:workers=2,sizes=measured,canonical=8", folder=None)
    assert run.summary()["parameters_sha256"] == sha(job(epochs=4), "sequential:canonical=8")
    rows = run.trace.of_kind(Kind.COMPUTE)
    full = rows[rows["update"] % 5 < 4]  # the last batch of an epoch is smaller
    assert set(full["samples"][full["update"] < 3]) == {7}
    late = full[full["update"] >= 13]
    slow = min((0, 1), key=lambda worker: late["samples"][late["worker"] == worker].sum())
    assert late["samples"][late["worker"] == slow].max() < 5
    seconds = (late["end"] - late["start"]) / late["samples"]
    assert seconds[late["worker"] == slow].min() > seconds[late["worker"] != slow].min()


def test_a_run_is_resumed_with_another_number_of_workers(tmp_path: Path) -> None:
    whole = pl.train(job(), "ring:workers=2,canonical=8", folder=tmp_path / "a", checkpoint_every=0)
    assert whole.path is not None
    longer = pl.train(resume=whole.path, workers=3, epochs=4)
    assert longer.summary()["parameters_sha256"] == sha(job(epochs=4), "sequential:canonical=8")
    assert pl.replay(whole.path).matches


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("ring:codec=onebit,canonical=8", "a codec owes what it leaves out"),
        ("sequential:chunks=2,canonical=8", "says how many chunks there are"),
        ("sequential:sizes=2+1,canonical=8", "its chunks have equal sizes"),
        ("ring:canonical=-1", "whole number of at least 0"),
        ("downpour:canonical=8", "has no option 'canonical'"),
        ("ring:sizes=measured", "give canonical= too, as in canonical=8"),
    ],
)
def test_what_does_not_go_with_it_is_refused(plan: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        pl.Plan.parse(plan)


def test_more_workers_than_chunks_are_refused() -> None:
    with pytest.raises(PlanError, match="give at least canonical=3, or fewer workers"):
        pl.train(JOBS["mlp"](), "ring:workers=3,canonical=2", engine="virtual", folder=None)
