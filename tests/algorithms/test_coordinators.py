"""Sandblaster L-BFGS against plain NumPy on the whole vector; and the coordinator alone, with made-up answers."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.agenda import Agenda
from paceline.algorithms.coordinators import PARAMETERS, Command, Commands, Copy, Done, Dot, Evaluate, rehearse
from paceline.algorithms.coordinators.lbfgs import TRIALS, Lbfgs
from paceline.errors import JobWarning, PlanError
from paceline.interfaces.testing.conformance import difference
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual import World, simulate
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Order

pytestmark = pytest.mark.filterwarnings("ignore:plan sandblaster:paceline.errors.JobWarning")

Vector = npt.NDArray[np.float64]
SAMPLES, SIZE, BATCH, MEMORY = 60, 10, 20, 3
chance = np.random.default_rng(0)
X = chance.normal(size=(SAMPLES, SIZE))
A = np.diag(np.linspace(0.5, 8.0, SIZE))
START = chance.normal(size=SIZE) / 3


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(START.copy()))


def valley(bumps: float, model: nn.Module, batch: Any) -> torch.Tensor:
    """(w - x)' A (w - x) / 2, the mean over the batch; with bumps it is not convex."""
    away = model.w - batch[0]
    smooth: torch.Tensor = ((away @ torch.from_numpy(A)) * away).sum(1).mean() / 2
    return smooth + bumps * torch.cos(model.w).sum()


def job(bumps: float = 0.0, **changes: Any) -> pl.Job:
    given: dict[str, Any] = {"step": partial(valley, bumps), "batch_size": BATCH, "epochs": 50, **changes}
    return pl.Job(model=Point, data=(torch.from_numpy(X),), optimizer=partial(torch.optim.SGD, lr=0.1), **given)


def in_numpy(updates: int, bumps: float) -> tuple[Vector, Counter[str]]:
    """The same L-BFGS with the inverse Hessian as a matrix, and what happened on the way."""
    w, pairs, seen = START.copy(), list[tuple[Vector, Vector]](), Counter[str]()
    for update in range(updates):
        epoch, step = divmod(update, SAMPLES // BATCH)
        x = X[Order(SAMPLES, 0, True)._make(epoch).numpy()[step * BATCH : (step + 1) * BATCH]]

        def loss(w: Vector, x: Vector = x) -> float:
            return float(np.mean([(w - row) @ A @ (w - row) / 2 for row in x]) + bumps * np.cos(w).sum())

        def gradient(w: Vector, x: Vector = x) -> Vector:
            return np.asarray(A @ (w - x.mean(0)) - bumps * np.sin(w))

        g, inverse = gradient(w), np.eye(SIZE)
        if pairs:
            s, y = pairs[-1]
            inverse *= s @ y / (y @ y)
        for s, y in pairs:  # the BFGS formula, applied from the oldest pair on
            left = np.eye(SIZE) - np.outer(s, y) / (s @ y)
            inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
        d = -inverse @ g
        t = 1.0 if pairs else min(1.0, 1 / float(np.linalg.norm(g)))
        while loss(w + t * d) > loss(w) + 1e-4 * t * (d @ g):
            t /= 2
            seen["halved"] += 1
        s, y = t * d, gradient(w + t * d) - g
        if s @ y > 0:
            pairs = [*pairs, (s, y)][-MEMORY:]
        else:
            seen["left out"] += 1
        w = w + s
    return w, seen


def check_against_numpy(workers: int, engine: str, bumps: float, updates: int = 8) -> None:
    plan = f"sandblaster:memory={MEMORY}"
    run = pl.train(job(bumps), plan, workers, engine=engine, folder=None, max_updates=updates)
    expected, seen = in_numpy(updates, bumps)
    assert bumps == 0 or min(seen["halved"], seen["left out"]) > 0, "nothing of this was put to the test"
    assert np.abs(run.model.w.detach().numpy() - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("bumps", [0.0, 10.0])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_it_is_lbfgs(workers: int, bumps: float) -> None:
    check_against_numpy(workers, "virtual", bumps)


def test_it_is_lbfgs_on_real_processes() -> None:
    check_against_numpy(3, "local", 10.0)


@pytest.mark.parametrize(("updates", "away"), [(SIZE, 1e-2), (2 * SIZE, 1e-7)])
def test_on_a_quadratic_it_is_there_in_about_as_many_updates_as_there_are_parameters(updates: int, away: float) -> None:
    run = pl.train(job(batch_size=SAMPLES), "sandblaster", 2, engine="virtual", folder=None, max_updates=updates)
    assert np.abs(run.model.w.detach().numpy() - X.mean(0)).max() < away
    losses = run.trace.loss_curve()[1]
    assert all(after <= before + 1e-12 for before, after in pairwise(losses))


@pytest.mark.parametrize("name", ["mlp", "lstm"])  # with dropout: every evaluation of a batch draws the same
def test_virtual_and_local_give_the_same_bits(name: str) -> None:
    runs = [
        pl.train(JOBS[name](), "sandblaster", 3, engine=e, folder=None, max_updates=9) for e in ("virtual", "local")
    ]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1


def test_moving_buffers_are_those_of_an_updates_first_evaluation() -> None:
    one, other = (
        pl.train(JOBS["residual"](), plan, 3, engine="virtual", folder=None, max_updates=1).model.norm
        for plan in ("sandblaster", "ring")
    )
    assert torch.equal(one.running_mean, other.running_mean)
    assert one.num_batches_tracked == other.num_batches_tracked == 1


def test_a_loss_with_a_weight_of_its_own_is_the_same_for_any_number_of_workers() -> None:
    def importance(batch: Any) -> torch.Tensor:
        return 1 + batch[0][:, 0].abs()

    def weighed(model: nn.Module, batch: Any) -> torch.Tensor:
        away, each = model.w - batch[0], importance(batch)
        mean: torch.Tensor = (each * (away**2).sum(1)).sum() / each.sum()
        return mean

    made = job(step=weighed, loss_denominator=lambda batch: float(importance(batch).sum()))
    runs = [pl.train(made, "sandblaster", w, engine="virtual", folder=None, max_updates=6) for w in (1, 3)]
    assert difference(runs[0].model, runs[1].model) < 1e-12


def test_a_run_can_be_stopped_on_the_way_and_before_a_nan() -> None:
    data = X.copy()
    data[Order(SAMPLES, 0, True)._make(0)[BATCH]] = np.nan  # in the second batch
    run = pl.train(job().with_(data=(torch.from_numpy(data),)), "sandblaster", 2, folder=None, max_updates=9)
    assert torch.isfinite(run.model.w).all(), "a batch whose loss is not a number moved the parameters"
    found = pl.replay(run, until="nan")
    assert found.guilty_update == 1
    assert pl.replay(run, until=2).updates == 2


def test_the_trace_has_a_row_per_evaluation_and_samples_once() -> None:
    run = pl.train(job(10.0), "sandblaster", 2, engine="virtual", folder=None, max_updates=6)
    computed = run.trace.of_kind(Kind.COMPUTE)
    assert computed["samples"].sum() == 6 * BATCH
    assert len(computed) > 2 * 2 * 6, "no step was ever halved"


def test_in_time_only_an_update_evaluates_twice() -> None:
    trace = simulate(Plan.parse("sandblaster", 3), Agenda(90, 30, 1, parts=3), World())
    assert len(trace.of_kind(Kind.COMPUTE)) == 2 * 3 * 3
    assert len(trace.of_kind(Kind.APPLY)) == 3 * 3


def obey(commands: Commands, losses: list[float], products: list[float]) -> list[Command]:
    """The commands of one update whose answers are made up."""
    said = [next(commands)]
    while not isinstance(asked := said[-1], Done):
        answers = losses if isinstance(asked, Evaluate) else products if isinstance(asked, Dot) else [0.0]
        said.append(commands.send(answers.pop(0)))
    return said


def test_where_no_step_goes_down_nothing_moves() -> None:
    said = obey(Lbfgs().commands(), [1.0] + [2.0] * TRIALS, [-1.0])
    assert said[-2] == Copy(PARAMETERS, "s0")
    assert Copy("s0", PARAMETERS) in said


@pytest.mark.parametrize("slope", [0.0, 1.0, float("nan")])
def test_a_direction_that_does_not_lead_down_is_not_tried(slope: float) -> None:
    said = obey(Lbfgs().commands(), [1.0], [slope])
    assert sum(isinstance(command, Evaluate) for command in said) == 1


def test_a_pair_too_small_to_divide_by_is_left_out() -> None:
    commands = Lbfgs().commands()
    obey(commands, losses=[1.0, 0.0], products=[-1.0, 1e-200, 0.0])
    said = obey(commands, losses=[0.0, -1.0], products=[-1.0, 1.0, 1.0])
    assert not any(isinstance(command, Dot) and command.one == "s0" for command in said[:4])


class Reads(Lbfgs):
    def commands(self) -> Commands:
        yield Dot("s0", "s0")


class Writes(Lbfgs):
    def commands(self) -> Commands:
        yield Copy("elsewhere", PARAMETERS)


@pytest.mark.parametrize(
    ("coordinator", "says"), [(Reads(), "reads the vector 's0'"), (Writes(), "writes the vector 'elsewhere'")]
)
def test_a_rehearsal_finds_vectors_that_are_not_there(coordinator: Lbfgs, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        rehearse(coordinator, 1)


def test_clipping_is_refused_and_what_is_not_used_is_named() -> None:
    with pytest.raises(PlanError, match=r"gradient_clip_norm=0\.5"):
        pl.train(job(gradient_clip_norm=0.5), "sandblaster", engine="virtual", folder=None)
    made = job(lr_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=1))
    with pytest.warns(JobWarning, match="does not use optimizer=, lr_scheduler="):
        run = pl.train(made, "sandblaster", engine="virtual", folder=None, max_updates=1)
    assert any("lr_scheduler=" in note for note in run.record.notes)
