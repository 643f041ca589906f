"""Rules against plain NumPy, on a quadratic, in float64."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.collectives.whole_vectors import GRAPHS
from paceline.algorithms.rules.averaging import AdPsgd
from paceline.errors import PlanError
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual import World
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Order

Vector = npt.NDArray[np.float64]
SAMPLES, SIZE, BATCH, RATE, UPDATES = 60, 7, 12, 0.05, 23
chance = np.random.default_rng(0)
X = chance.normal(size=(SAMPLES, SIZE))
A = np.diag(chance.uniform(0.5, 3.0, SIZE))
START = chance.normal(size=SIZE)


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(START.copy()))


def half_square(model: nn.Module, batch: Any) -> torch.Tensor:
    """(w - x)' A (w - x) / 2, the mean over the batch: its gradient is A (w - mean(x))."""
    away = model.w - batch[0]
    return ((away @ torch.from_numpy(A)) * away).sum(1).mean() / 2  # type: ignore[no-any-return]


def job(**changes: Any) -> pl.Job:
    given: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=RATE), **changes}
    return pl.Job(model=Point, data=(torch.from_numpy(X),), step=half_square, batch_size=BATCH, epochs=9, **given)


def chunks(update: int, workers: int) -> list[Vector]:
    """What each worker sees of an update, computed here again."""
    steps = SAMPLES // BATCH
    order = Order(SAMPLES, 0, True)._make(update // steps).numpy()
    start = update % steps * BATCH
    cuts = [start + BATCH * part // workers for part in range(workers + 1)]
    return [X[order[a:b]] for a, b in pairwise(cuts)]


def local_step(w: Vector, x: Vector) -> Vector:
    return w - RATE * A @ (w - x.mean(0))


def reference(plan: str, workers: int) -> Vector:
    replicas, centre, velocity = [START.copy() for _ in range(workers)], START.copy(), np.zeros(SIZE)
    for update in range(UPDATES):
        if plan == "gossip":
            seen = zip(replicas, chunks(update, workers), strict=True)
            gradients = [A @ (w - x.mean(0)) for w, x in seen]
            near = [{n, (n + 1) % workers, (n - 1) % workers} for n in range(workers)]
            mixed = [sum(replicas[m] for m in mine) / len(mine) for mine in near]
            replicas = [w - RATE * g for w, g in zip(mixed, gradients, strict=True)]
            centre = sum(replicas) / workers
            continue
        replicas = [local_step(w, x) for w, x in zip(replicas, chunks(update, workers), strict=True)]
        last = update + 1 == UPDATES
        mean = sum(replicas) / workers
        if plan == "parallel_sgd" and last:
            centre = mean
        elif plan == "local_sgd" and ((update + 1) % 4 == 0 or last):
            replicas, centre = [mean] * workers, mean
        elif plan == "easgd" and ((update + 1) % 3 == 0 or last):
            alpha = 0.9 / workers
            pulls = [alpha * (w - centre) for w in replicas]
            replicas = [w - pull for w, pull in zip(replicas, pulls, strict=True)]
            centre = centre + sum(pulls)
        elif plan == "diloco" and ((update + 1) % 5 == 0 or last):
            outer = centre - mean
            velocity = 0.9 * velocity + outer
            centre = centre - 0.7 * (outer + 0.9 * velocity)
            replicas = [centre] * workers
    return centre


PLANS = {
    "parallel_sgd": "parallel_sgd",
    "local_sgd": "local_sgd:every=4",
    "easgd": "easgd:every=3",
    "diloco": "diloco:every=5",
    "gossip": "gossip",
}


@pytest.mark.parametrize("workers", [1, 2, 4, 5])
@pytest.mark.parametrize("name", PLANS)
def test_averaging_is_its_equation(name: str, workers: int) -> None:
    run = pl.train(job(), PLANS[name], workers, engine="virtual", folder=None, max_updates=UPDATES)
    expected = reference(name, workers)
    assert np.abs(run.model.w.detach().numpy() - expected).max() <= 1e-12 * np.abs(expected).max()


def test_local_sgd_with_a_meeting_after_every_step_is_the_synchronous_plan() -> None:
    one, other = (
        pl.train(job(), plan, 3, engine="virtual", folder=None).model.w for plan in ("local_sgd:every=1", "ring")
    )
    assert torch.allclose(one, other, rtol=1e-12, atol=0)


def test_gossip_on_the_complete_graph_is_the_synchronous_plan() -> None:
    plans = ("gossip:graph=complete", "ring")
    one, other = (pl.train(job(), plan, 4, engine="virtual", folder=None).model.w for plan in plans)
    assert torch.allclose(one, other, rtol=1e-12, atol=0)


def test_diloco_with_rate_1_and_no_momentum_is_local_sgd() -> None:
    plans = ("diloco:every=4,rate=1.0,momentum=0.0", "local_sgd:every=4")
    one, other = (pl.train(job(), plan, 3, engine="virtual", folder=None).model.w for plan in plans)
    assert torch.allclose(one, other, rtol=1e-12, atol=0)


def test_dc_asgd_with_lambda_0_is_downpour_to_the_bit() -> None:
    world = World(speeds=(1.0, 0.5, 0.7), straggle=(0.1, 4.0))
    made = job(optimizer=partial(torch.optim.SGD, lr=RATE, momentum=0.9))
    shas = set()
    for plan in ("dc_asgd:lam=0", "dc_asgd:lam=0,mode=adaptive", "downpour"):
        run = pl.train(made, plan, 3, engine="virtual", folder=None, world=world)
        assert run.summary()["staleness"]["mean"] > 1
        shas.add(run.summary()["parameters_sha256"])
    assert len(shas) == 1


@pytest.mark.parametrize("mode", ["constant", "adaptive"])
def test_dc_asgd_is_its_equation(mode: str) -> None:
    """The trace says who pushed what onto which version: the same again, in NumPy."""
    lam, decay = 0.3, 0.95
    run = pl.train(job(), f"dc_asgd:mode={mode},lam={lam}", 3, engine="virtual", folder=None, max_updates=UPDATES)
    versions, mean_square = [START.copy()], np.zeros(SIZE)
    rows = run.trace.rows[run.trace.rows["version"] > 0]
    for row in rows[np.argsort(rows["version"])]:
        old, newest = versions[row["base"]], versions[-1]
        (x,) = chunks(int(row["update"]), 1)
        gradient = A @ (old - x.mean(0))
        scale: Any = lam
        if mode == "adaptive":
            mean_square = decay * mean_square + (1 - decay) * gradient**2
            scale = lam / np.sqrt(mean_square + 1e-7)
        versions.append(newest - RATE * (gradient + scale * gradient**2 * (newest - old)))
    assert run.summary()["staleness"]["max"] > 1
    assert np.abs(run.model.w.detach().numpy() - versions[-1]).max() <= 1e-12 * np.abs(versions[-1]).max()


def test_gap_aware_is_its_equation() -> None:
    decay = 0.99
    run = pl.train(job(), "gap_aware", 3, engine="virtual", folder=None, max_updates=UPDATES)
    versions, mean_square = [START.copy()], np.zeros(SIZE)
    rows = run.trace.rows[run.trace.rows["version"] > 0]
    for count, row in enumerate(rows[np.argsort(rows["version"])]):
        old, newest = versions[row["base"]], versions[-1]
        (x,) = chunks(int(row["update"]), 1)
        usual = np.sqrt(mean_square / (1 - decay**count)) if count else np.ones(SIZE)
        step = -RATE * A @ (old - x.mean(0)) / (1 + np.abs(newest - old) / usual)
        mean_square = decay * mean_square + (1 - decay) * step**2
        versions.append(newest + step)
    assert run.summary()["staleness"]["max"] > 1
    assert np.abs(run.model.w.detach().numpy() - versions[-1]).max() <= 1e-12 * np.abs(versions[-1]).max()


def test_gap_aware_with_one_worker_is_downpour_to_the_bit() -> None:
    made = job(optimizer=partial(torch.optim.SGD, lr=RATE, momentum=0.9))
    runs = [pl.train(made, plan, 1, engine="virtual", folder=None) for plan in ("gap_aware", "downpour")]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1


def test_hogwild_with_one_worker_is_sequential_to_the_bit() -> None:
    made = job(optimizer=partial(torch.optim.SGD, lr=RATE, momentum=0.9))
    shas = {
        pl.train(made, plan, folder=None, engine=engine).summary()["parameters_sha256"]
        for plan, engine in (
            ("hogwild:workers=1", "virtual"),
            ("hogwild:workers=1", "local"),
            ("sequential", "virtual"),
        )
    }
    assert len(shas) == 1


def test_a_synchronous_gradient_is_clipped_without_touching_what_others_still_read() -> None:
    from paceline.training.gradients.replica import clipped

    shared = torch.ones(4)
    (scaled,) = clipped([shared], 0.5)
    assert scaled is not None
    assert scaled.norm() < 0.51
    assert torch.equal(shared, torch.ones(4))


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("dc_asgd:mode=sideways", "is not one of constant, adaptive"),
        ("ssp:bound=-1", "is not a whole number of at least 0"),
        ("local_sgd:every=0", "is not a whole number of at least 1"),
        ("easgd:spring=strong", "is not a number of at least 0"),
    ],
)
def test_impossible_options_are_refused(plan: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Plan.parse(plan)


@pytest.mark.parametrize(
    "plan", ["downpour", "hogwild", "easgd:mode=asynchronous,every=2,spring=0.0001", "local_sgd:every=2"]
)
def test_a_schedule_counts_the_samples_of_all_workers(plan: str) -> None:
    """After ten updates, whoever made them, the rate is 0: from then on no one's step moves anything."""
    seen: list[float] = []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append(self.param_groups[0]["lr"])
            super().step(closure)

    made = job(
        optimizer=partial(Watched, lr=RATE),
        lr_scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda update: float(update < 10)),
    )
    pl.train(made, plan, 3, engine="virtual", folder=None, max_updates=20)
    each = 3 if plan.startswith("local_sgd") else 1  # every worker steps in every update
    steps = seen[-20 * each :]  # the probe and the shapes of the optimizer's memory step before
    assert steps.count(RATE) == 10 * each
    assert steps.count(0.0) == 10 * each


@pytest.mark.parametrize("name", ["easgd", "diloco"])
def test_asynchronous_exchanges_are_their_equations(name: str) -> None:
    """The trace says who stepped on what and in which order they came to the centre: the same again, in NumPy."""
    workers, every = 3, 4
    plan = f"{name}:mode=asynchronous,every={every},workers={workers}"
    world = World(speeds=(1.0, 0.6, 0.8))
    run = pl.train(job(), plan, engine="virtual", folder=None, max_updates=UPDATES, world=world)
    mine, pulled = [START.copy() for _ in range(workers)], [START.copy() for _ in range(workers)]
    centre, velocity = START.copy(), np.zeros(SIZE)
    pushes = run.trace.rows[run.trace.rows["version"] > 0]
    for row in pushes[np.argsort(pushes["version"])]:
        who, lease = int(row["worker"]), int(row["update"])
        for update in range(lease * every, min((lease + 1) * every, UPDATES)):
            (x,) = chunks(update, 1)
            mine[who] = local_step(mine[who], x)
        if name == "easgd":
            pull = 0.9 / workers * (mine[who] - centre)
            mine[who], centre = mine[who] - pull, centre + pull
        else:
            outer = (pulled[who] - mine[who]) / workers
            velocity = 0.9 * velocity + outer
            centre = centre - 0.7 * (outer + 0.9 * velocity)
            mine[who] = pulled[who] = centre
    assert len(pushes) == -(-UPDATES // every)
    assert np.abs(run.model.w.detach().numpy() - centre).max() <= 1e-12 * np.abs(centre).max()


@pytest.mark.parametrize("graph", GRAPHS)
def test_ad_psgd_is_its_equation(graph: str) -> None:
    """The trace says in which order they came, chance whom they met: the same again, in NumPy."""
    workers, made = 4, job()
    world = World(speeds=(1.0, 0.6, 0.8, 0.3))
    plan = Plan.parse(f"gossip:mode=asynchronous,graph={graph},workers={workers}")
    run = pl.train(made, plan, engine="virtual", folder=None, max_updates=UPDATES, world=world)
    newest, held = [[START.copy() for _ in range(workers)] for _ in range(2)]
    pushes = run.trace.rows[run.trace.rows["version"] > 0]
    moved = 0
    for row in pushes[np.argsort(pushes["version"])]:
        who, batch = int(row["worker"]), int(row["update"])
        other = AdPsgd(graph).partner(who, workers, made.seed, batch)
        assert other is not None
        moved += not np.array_equal(newest[who], held[who])
        (x,) = chunks(batch, 1)
        gradient = A @ (held[who] - x.mean(0))
        newest[other] = (newest[who] + newest[other]) / 2
        newest[who] = held[who] = newest[other] - RATE * gradient
    assert moved > 5, "no one was ever met while it computed"
    mean = np.mean(newest, 0)
    assert np.abs(run.model.w.detach().numpy() - mean).max() <= 1e-12 * np.abs(mean).max()


def test_backup_is_the_mean_of_the_first_gradients_of_each_round() -> None:
    run = pl.train(
        job(), "backup:workers=3", engine="virtual", folder=None, max_updates=UPDATES, world=World(jitter=0.9)
    )
    rows, value = run.trace.of_kind(Kind.APPLY), START.copy()
    for version in range(1, UPDATES + 1):
        taken = [chunks(int(lease) // 2, 2)[int(lease) % 2] for lease in rows["update"][rows["version"] == version]]
        assert len(taken) == 2
        value = value - RATE * (A @ (value - np.concatenate(taken).mean(0)))
    assert len(run.trace.of_kind(Kind.DROP)) > 5, "no one was ever late"
    assert np.abs(run.model.w.detach().numpy() - value).max() <= 1e-12 * np.abs(value).max()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_map_and_reduce_is_the_mean_of_models_trained_on_parts_whoever_trained_them(workers: int) -> None:
    parts, epochs = 3, 9
    plan = f"parallel_sgd:mode=map_reduce,parts={parts},workers={workers}"
    world = World(speeds=(1.0, 0.4), deaths={1: 2e-3} if workers == 3 else {})
    run = pl.train(job().with_(batch_size=4), plan, engine="virtual", folder=None, world=world)
    assert run.summary()["deaths"] == ([1] if workers == 3 else [])
    base, models = Order(SAMPLES, 0, True)._make(0).numpy(), []
    for part in range(parts):
        mine, value = base[part * 20 : part * 20 + 20], START.copy()
        for epoch in range(epochs):
            order = Order(SAMPLES, 0, True, [0, 20, 40, 60])._make(epoch).numpy()[part * 20 : part * 20 + 20]
            assert sorted(order) == sorted(mine), "an epoch moved a sample to another part"
            for batch in np.split(order, 5):
                value = local_step(value, X[batch])
        models.append(value)
    mean = np.mean(models, 0)
    assert np.abs(run.model.w.detach().numpy() - mean).max() <= 1e-12 * np.abs(mean).max()


def test_more_parts_than_batches_are_refused() -> None:
    with pytest.raises(PlanError, match="wants 8 parts of the data, but there are only 5 batches"):
        pl.train(job(), "parallel_sgd:mode=map_reduce", 2, engine="virtual", folder=None)
