"""Native updates: many updates in one call of generated code, with the bits of the same updates one by one."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.agenda import Chunk
from paceline.errors import RunFailed, RunStopped
from paceline.runtime.engines.workers.methods import native_updates
from paceline.runtime.runs.progress import Progress
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind, Trace
from paceline.training.data.source import Order

SAMPLES, BATCH = 500, 12  # the last batch of an epoch has 8


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 13),
        nn.BatchNorm1d(13),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(13, 4),
    )


def plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 13), nn.Tanh(), nn.Dropout(0.2), nn.Linear(13, 4, bias=False))


def job(**changes: object) -> pl.Job:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(SAMPLES, 10, generator=generator), torch.randint(4, (SAMPLES,), generator=generator)
    return pl.Job(
        model=model,
        data=(x, y),
        test=(x[:50], y[:50]),
        loss=nn.CrossEntropyLoss(),
        batch_size=BATCH,
        epochs=2,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        evaluate_every=25,
        seed=3,
        compute="fused",
    ).with_(**changes)


ADAM = partial(torch.optim.Adam, lr=0.01, weight_decay=1e-3)
PLATEAU = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5, threshold=0.5)
COSINE = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=100)


def losses(trace: Trace) -> list[tuple[int, ...]]:
    """What the trace says of gradients and steps, without times."""
    names = ["worker", "update", "shard", "base", "version", "samples"]
    computed, applied = trace.of_kind(Kind.COMPUTE), trace.of_kind(Kind.APPLY)
    return sorted([*map(tuple, computed[[*names, "value"]].tolist()), *map(tuple, applied[names].tolist())])


def bits(run: Run) -> object:
    return run.summary()["parameters_sha256"], [row["test_loss"] for row in run.history]


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        ("sequential", {"optimizer": ADAM, "lr_scheduler": COSINE}),
        ("ceiling:workers=2", {}),
        ("local_sgd:workers=3,every=7", {"optimizer": ADAM}),
        ("diloco:workers=2,every=9", {"lr_scheduler": COSINE}),
        ("sequential", {"batch_size": 2, "updates": 300}),
        ("ring:workers=2", {"model": plain_model, "optimizer": ADAM, "lr_scheduler": COSINE}),
        ("tree:workers=3", {"model": plain_model, "batch_size": 7}),
        ("sequential", {"lr_scheduler": PLATEAU, "epochs": 4}),
        ("ring:workers=2", {"model": plain_model, "lr_scheduler": PLATEAU, "epochs": 4}),
        ("sequential", {"gradient_clip_norm": 0.3, "optimizer": ADAM}),
        ("sequential:threads=2", {"gradient_clip_norm": 0.3, "lr_scheduler": COSINE}),
        ("ring:workers=2", {"model": plain_model, "gradient_clip_norm": 0.3}),
        ("ring:workers=3", {"model": plain_model, "gradient_clip_norm": 0.3, "optimizer": ADAM, "batch_size": 7}),
        ("local_sgd:workers=2,every=7", {"gradient_clip_norm": 0.3}),
        # Until the end a process evaluates its own replica, and the virtual engine the mean of all.
        (
            "gossip:workers=2",
            {"model": plain_model, "evaluate_every": None, "epochs": 1, "optimizer": ADAM, "lr_scheduler": COSINE},
        ),
        # Three shares of a third: a product that is rounded before it is added would show.
        (
            "gossip:workers=3",
            {"model": plain_model, "evaluate_every": None, "epochs": 1, "gradient_clip_norm": 0.3, "batch_size": 7},
        ),
        ("ring:workers=2", {}),  # batch-norm's statistics travel, too: one by one
        pytest.param(
            "sequential:threads=2", {"optimizer": partial(torch.optim.RMSprop, momentum=0.5)}, marks=pytest.mark.soak
        ),
        pytest.param("easgd:workers=2", {"optimizer": partial(torch.optim.Adagrad, lr=0.1)}, marks=pytest.mark.soak),
    ],
)
def test_the_bits_of_updates_one_by_one(plan: str, changes: dict[str, object]) -> None:
    """The virtual engine makes every update by itself; so do workers whose calls hold one."""
    changes = dict(changes)
    updates = changes.pop("updates", None)
    run = pl.train(job(**changes), plan, folder=None, max_updates=updates)
    alone = pl.train(job(**changes), plan, engine="virtual", folder=None, max_updates=updates)
    assert bits(run) == bits(alone)
    if "ceiling" not in plan:  # of which the virtual engine computes the first worker
        assert losses(run.trace) == losses(alone.trace)


@pytest.mark.parametrize("limit", [None, 0.5], ids=["as it is", "clipped"])
@pytest.mark.parametrize("plan", ["sequential", "ring:workers=2", "gossip:workers=3"])
def test_a_leg_is_one_call(plan: str, limit: float | None) -> None:
    """Rows lie close: between two updates of a call nothing happens but the next gradient."""
    given = job(model=plain_model, test=None, evaluate_every=None, gradient_clip_norm=limit)
    run = pl.train(given, plan, folder=None)
    computed, applied = (rows[rows["worker"] == 0] for rows in map(run.trace.of_kind, (Kind.COMPUTE, Kind.APPLY)))
    follows = computed["start"][1:] == applied["end"][:-1]
    assert follows.any()  # never, where updates are made one by one: Python is between them


@pytest.mark.parametrize("plan", ["sequential", "ring:workers=2", "gossip:workers=2"])
def test_a_loss_that_is_not_finite_ends_the_run_there(plan: str) -> None:
    """The report names the update and its samples, as it does where updates are made one by one."""
    broken = job(model=plain_model)
    x, y = broken.data
    x[Order(SAMPLES, broken.seed, True).indices(Chunk(32, 0, 0, 32 * BATCH, 32 * BATCH + 1, 1.0))] = float("nan")

    def said(compute: str) -> str:
        with pytest.raises(RunFailed) as caught:
            pl.train(broken.with_(data=(x, y), compute=compute), plan, folder=None)
        return str(caught.value)

    assert "in update 32, with samples " in said("fused")
    assert said("fused") == said("autograd")


class Interrupted(Exception):
    pass


def interrupted(job: pl.Job, plan: str, folder: Path) -> tuple[Path, pl.Job]:
    """A run that was ended after a checkpoint, and its job: of so many epochs that its parent looks before the end."""

    def poll(_: Progress) -> None:
        if any(path.name.isdigit() for path in folder.glob(f"{epochs}/*/checkpoints/*")):
            raise Interrupted

    for epochs in (1600, 6400, 25600):
        try:
            pl.train(job.with_(epochs=epochs), plan, folder=folder / str(epochs), checkpoint_every=500, progress=poll)
        except Interrupted:
            (run,) = (folder / str(epochs)).iterdir()
            return run, job.with_(epochs=epochs)
    pytest.fail("every run was done before its parent looked")


def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    run, long = interrupted(job(optimizer=ADAM, evaluate_every=5000), "sequential", tmp_path)
    assert bits(pl.train(resume=run)) == bits(pl.train(long, "sequential", folder=None))


def test_a_signal_is_seen_between_two_calls(tmp_path: Path) -> None:
    """A checkpoint is written where the worker is by then, and the run ends there."""

    def ask(state: Progress) -> None:
        if state.updates > 10 and not asked:
            asked.append(os.kill(os.getpid(), signal.SIGTERM))

    asked: list[None] = []
    endless = job(epochs=10**6, test=None, evaluate_every=None)
    with pytest.raises(RunStopped):
        pl.train(endless, "sequential", folder=tmp_path, checkpoint_every=0, progress=ask)
    assert any(path.name.isdigit() for path in tmp_path.glob("*/checkpoints/*"))


@pytest.mark.parametrize(
    "changes",
    [
        {"on_nan": "skip"},
        {"accumulate_grad_batches": 2},
        {"optimizer": partial(torch.optim.NAdam, lr=0.01)},
        {"batch_transform": lambda batch: batch},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_leg_cannot_do_is_done_one_by_one(changes: dict[str, object]) -> None:
    run = pl.train(job(**changes), "sequential", folder=None, max_updates=12)
    alone = pl.train(job(**changes), "sequential", engine="virtual", folder=None, max_updates=12)
    assert bits(run) == bits(alone)


def test_updates_before() -> None:
    assert native_updates.before(range(3, 20, 2), 8) == range(3, 8, 2)
    assert native_updates.before(range(4, 20), 4) == range(4, 4)
    assert native_updates.before(range(4, 6), 30) == range(4, 6)
