"""Native pushes of workers at a server: what they leave is what updates in Python leave, to the last bit."""

from __future__ import annotations

import os
import random
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.agenda import Chunk
from paceline.algorithms.server.messages import Push
from paceline.errors import RunFailed
from paceline.interfaces.testing.conformance import no_update_lost, replays, staleness_identity
from paceline.interfaces.testing.killing import worker_processes
from paceline.runtime.engines.arithmetic.servers import ServerArithmetic
from paceline.runtime.engines.servers.shard_memory import ShardPort
from paceline.runtime.engines.setup import set_up
from paceline.runtime.engines.workers.methods import native_pushes
from paceline.runtime.engines.workers.worker_context import WorkerContext
from paceline.runtime.runs.progress import Progress
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind, TraceRing
from paceline.training.data.source import Order
from paceline.training.gradients.fused_replica import FusedGradients
from tests.runtime.engines.test_native_updates import (
    ADAM,
    BATCH,
    SAMPLES,
    bits,
    interrupted,
    job,
    losses,
    model,
    plain_model,
)

MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
OPTIMIZERS = {
    "plain": partial(torch.optim.SGD, lr=0.1),
    "momentum": MOMENTUM,
    "adam": ADAM,
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3, momentum=0.5),
    "adagrad": partial(torch.optim.Adagrad, lr=0.02, lr_decay=1e-3),
}
ONE_CYCLE = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.02, total_steps=200)


class Counting(nn.Sequential):
    """A network whose workers write a letter into a file for every gradient that Python asks for."""

    @staticmethod
    def make(file: str, parent: int) -> nn.Module:
        if os.getpid() != parent and not hasattr(FusedGradients, "counted"):
            alone = FusedGradients.backward

            def backward(*given: Any) -> float:
                with open(file, "a") as counted:
                    counted.write("g")
                return alone(*given)

            FusedGradients.backward = backward  # type: ignore[method-assign]
            FusedGradients.counted = True  # type: ignore[attr-defined]
        return plain_model()


SOAK = pytest.mark.soak
SHARDS, BOUND = "downpour:workers=2,shards=2", "ssp:workers=2,bound=2"


@pytest.mark.parametrize(
    ("plan", "optimizer"),
    [  # every optimizer with one of them
        pytest.param(plan, optimizer, marks=[] if (row + number) % 2 else [SOAK])
        for row, plan in enumerate((SHARDS, BOUND))
        for number, optimizer in enumerate(OPTIMIZERS)
    ],
)
def test_a_replay_has_the_same_bits(plan: str, optimizer: str, tmp_path: Path) -> None:
    """A replay makes every update in Python, by the user's optimizer; in the run, generated code made most."""
    counted = partial(Counting.make, str(tmp_path / "gradients"), os.getpid())
    (tmp_path / "gradients").touch()
    run = pl.train(job(model=counted, optimizer=OPTIMIZERS[optimizer], epochs=4), plan, folder=None)
    no_update_lost(run)
    staleness_identity(run)
    replays(run)
    assert (tmp_path / "gradients").stat().st_size < 4 * 42 / 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_of_hogwild_has_the_bits_of_the_virtual_engine(optimizer: str, tmp_path: Path) -> None:
    counted = partial(Counting.make, str(tmp_path / "gradients"), os.getpid())
    (tmp_path / "gradients").touch()
    given = job(model=counted, optimizer=OPTIMIZERS[optimizer], epochs=3)
    run = pl.train(given, "hogwild:workers=1", folder=None)
    alone = pl.train(given, "hogwild:workers=1", engine="virtual", folder=None)
    assert bits(run) == bits(alone)
    assert losses(run.trace) == losses(alone.trace)
    assert (tmp_path / "gradients").stat().st_size < 3 * 42 / 2


@pytest.mark.parametrize(
    "optimizer", [pytest.param(each, marks=[] if each in ("plain", "adam") else [SOAK]) for each in OPTIMIZERS]
)
def test_workers_of_hogwild_apply_every_batch_once_and_learn(optimizer: str) -> None:
    given = job(model=plain_model, optimizer=OPTIMIZERS[optimizer], epochs=8)
    begun = pl.train(given, "sequential", max_updates=1, folder=None).history[-1]["test_loss"]
    run = pl.train(given, "hogwild:workers=3", folder=None)
    applied = run.trace.of_kind(Kind.APPLY)["update"].tolist()
    assert sorted(applied) == list(range(8 * 42))
    assert run.history[-1]["test_loss"] < begun


class DecayForAWhile:
    """A schedule of a user's own, which changes what an optimizer does and not only its numbers."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.groups, self.steps = optimizer.param_groups, 0

    def step(self) -> None:
        self.steps += 1
        for group in self.groups:
            group["lr"] = 0.05 / (1 + self.steps)
            group["weight_decay"] = 0.01 if 60 <= self.steps < 90 else 0.0


def told_little(schedule: Any, parent: int, optimizer: torch.optim.Optimizer) -> Any:
    """A schedule, of which generated code in worker processes is told one update at a time."""
    if os.getpid() != parent:
        native_pushes.AHEAD = native_pushes.MOST = 1
    return schedule(optimizer)


@pytest.mark.parametrize(
    ("plan", "schedule", "told"),
    [  # every pair of two of them
        pytest.param(plan, schedule, told, marks=[] if (row + number + place) % 2 else [SOAK])
        for row, plan in enumerate((SHARDS, "dc_asgd:workers=2,mode=adaptive"))
        for number, schedule in enumerate((ONE_CYCLE, DecayForAWhile))
        for place, told in enumerate(("much", "little"))
    ],
)
def test_a_schedule_goes_by_the_versions_of_each_shard(plan: str, schedule: Any, told: str, tmp_path: Path) -> None:
    counted = partial(Counting.make, str(tmp_path / "gradients"), os.getpid())
    (tmp_path / "gradients").touch()
    paced = partial(told_little, schedule, os.getpid()) if told == "little" else schedule
    optimizer = OPTIMIZERS["adamw" if schedule is ONE_CYCLE else "plain"]
    run = pl.train(job(model=counted, optimizer=optimizer, lr_scheduler=paced, epochs=4), plan, folder=None)
    no_update_lost(run)
    staleness_identity(run)
    replays(run)
    assert (tmp_path / "gradients").stat().st_size < 4 * 42 / (2 if schedule is ONE_CYCLE else 1)


@pytest.mark.parametrize("schedule", [ONE_CYCLE, DecayForAWhile], ids=["one cycle", "of another form"])
@pytest.mark.parametrize("plan", ["downpour:workers=1", "hogwild:workers=1"])
def test_one_worker_with_a_schedule_has_the_bits_of_the_virtual_engine(plan: str, schedule: Any) -> None:
    optimizer = OPTIMIZERS["adam" if schedule is ONE_CYCLE else "plain"]
    given = job(model=plain_model, optimizer=optimizer, lr_scheduler=schedule, epochs=3)
    run, alone = (pl.train(given, plan, engine=engine, folder=None) for engine in ("local", "virtual"))
    assert bits(run) == bits(alone)
    assert losses(run.trace) == losses(alone.trace)


@pytest.mark.parametrize("plan", [SHARDS, "dc_asgd:workers=2"])
def test_gradients_are_clipped_by_the_norm_of_all_shards(plan: str, tmp_path: Path) -> None:
    counted = partial(Counting.make, str(tmp_path / "gradients"), os.getpid())
    (tmp_path / "gradients").touch()
    given = job(model=counted, optimizer=MOMENTUM, lr_scheduler=ONE_CYCLE, gradient_clip_norm=0.2, epochs=4)
    run = pl.train(given, plan, folder=None)
    replays(run)
    assert (tmp_path / "gradients").stat().st_size < 4 * 42 / 2
    assert bits(run) != bits(pl.train(given.with_(gradient_clip_norm=None), "downpour:workers=2", folder=None))


@pytest.mark.parametrize("plan", ["downpour:workers=1", "hogwild:workers=1"])
def test_a_clipping_worker_has_the_bits_of_the_virtual_engine(plan: str) -> None:
    given = job(model=plain_model, optimizer=ADAM, gradient_clip_norm=0.2, epochs=3)
    run, alone = (pl.train(given, plan, engine=engine, folder=None) for engine in ("local", "virtual"))
    assert bits(run) == bits(alone)


def test_one_worker_alone_has_the_bits_of_the_virtual_engine() -> None:
    """Its order is the only one there is: rows, snapshots and parameters are the same."""
    given = job(model=plain_model, optimizer=MOMENTUM, epochs=3)
    run = pl.train(given, "downpour:workers=1", folder=None)
    alone = pl.train(given, "downpour:workers=1", engine="virtual", folder=None)
    assert bits(run) == bits(alone)
    assert losses(run.trace) == losses(alone.trace)


def one_in_python(path: str, parent: int, parameters: Any) -> torch.optim.Optimizer:
    """Adam, to whose steps one of the worker processes listens, which keeps it in Python."""
    made = ADAM(parameters)
    if os.getpid() != parent:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            if Path(path).read_text() != str(os.getpid()):
                return made
        Path(path).write_text(str(os.getpid()))
        made.register_step_post_hook(lambda *_: None)
    return made


def test_one_worker_in_generated_code_and_one_in_python(tmp_path: Path) -> None:
    mixed = partial(one_in_python, str(tmp_path / "claimed"), os.getpid())
    run = pl.train(job(model=plain_model, optimizer=mixed, epochs=10), "downpour:workers=2,shards=2", folder=None)
    no_update_lost(run)
    staleness_identity(run)
    replays(run)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": model},
        {"on_nan": "skip"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_leg_cannot_do_is_done_one_by_one(changes: dict[str, Any]) -> None:
    given = job(**{"model": plain_model} | changes)
    run = pl.train(given, "downpour:workers=1", folder=None, max_updates=30)
    alone = pl.train(given, "downpour:workers=1", engine="virtual", folder=None, max_updates=30)
    assert bits(run) == bits(alone)


def test_a_loss_that_is_not_finite_ends_the_run_there() -> None:
    broken = job(model=plain_model)
    x, y = broken.data
    x[Order(SAMPLES, broken.seed, True).indices(Chunk(32, 0, 0, 32 * BATCH, 32 * BATCH + 1, 1.0))] = float("nan")
    with pytest.raises(RunFailed, match="in update 32, with samples "):
        pl.train(broken.with_(data=(x, y)), "downpour:workers=1", folder=None)


def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Checkpoints are taken at their updates while workers push in generated code."""
    short = job(model=plain_model, optimizer=MOMENTUM, test=None, evaluate_every=None)
    run, given = interrupted(short, "downpour:workers=1", tmp_path)
    alone = pl.train(given, "downpour:workers=1", folder=None).summary()["parameters_sha256"]
    assert pl.train(resume=run).summary()["parameters_sha256"] == alone


@pytest.mark.parametrize("plan", ["downpour:workers=1", "hogwild:workers=1"])
def test_no_worker_holds_a_lock_while_its_trace_is_full(plan: str) -> None:
    """The parent, which takes all locks for a checkpoint, reads no trace meanwhile."""
    servers = ServerArithmetic(set_up(job(model=plain_model), pl.Plan.parse(plan), "virtual"))
    ((port,), side, ring) = servers.ports[0], servers.sides[0], TraceRing(memoryview(bytearray(TraceRing.size())))
    lock = threading.Lock()
    locked_while_full = list[bool]()

    def drain(_: WorkerContext) -> None:
        locked_while_full.append(lock.locked())
        ring.drain()

    context: Any = SimpleNamespace(trace=ring, number=0, host=SimpleNamespace(ensure_trace_space=drain))
    context.ensure_trace_space = side.ensure_trace_space = partial(WorkerContext.ensure_trace_space, context)
    side.record = partial(WorkerContext.record, context)
    setattr(port, "lock" if isinstance(port, ShardPort) else "guard", lock)
    servers.compute(0, servers.setup.agenda.task(0))
    while not ring.full:
        side.record(Kind.COMPUTE, *[0] * 10)
    port.push(Push(0, 0, 0), servers.gradients[0])
    assert locked_while_full == [False]


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 4))


def with_two_killed(plan: str, seed: int) -> Run:
    """Train while two workers are killed at random moments."""
    chance, victims = random.Random(seed), list[psutil.Process]()
    first, second = sorted(chance.sample(range(50, 700), 2))

    def kill(state: Progress) -> None:
        alive = [process for process in worker_processes() if process not in victims]
        if len(victims) < 2 and state.updates >= (first, second)[len(victims)] and len(alive) > 1:
            victims.append(chance.choice(alive))
            victims[-1].kill()

    given = job(
        model=wide,
        optimizer=ADAM,
        lr_scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=1300),
        epochs=30,
        test=None,
        evaluate_every=None,
    )
    run = pl.train(given, plan, folder=None, progress=kill)
    assert victims
    return run


SEEDS = [0, *(pytest.param(seed, marks=SOAK) for seed in range(1, 10))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("plan", ["downpour:workers=3,shards=2", "ssp:workers=3,bound=3"])
def test_workers_are_killed_in_the_middle_of_pushes(plan: str, seed: int) -> None:
    """No batch is lost, none is applied twice, and a replay has the same bits."""
    run = with_two_killed(plan, seed)
    no_update_lost(run)
    staleness_identity(run)
    replays(run)


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_of_hogwild_are_killed_in_the_middle_of_pushes(seed: int) -> None:
    run = with_two_killed("hogwild:workers=3", seed)
    assert set(run.trace.of_kind(Kind.APPLY)["update"].tolist()) == set(range(30 * 42))
