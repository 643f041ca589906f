"""Every plan, on every engine, keeps what `paceline.interfaces.testing.conformance` asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from paceline.interfaces.api.train import train
from paceline.interfaces.testing.conformance import ENGINES, PLANS, check_run, difference, replays, same_numbers
from paceline.interfaces.testing.jobs import DEEP_JOBS, JOBS, OPTIMIZERS
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.split_layers import Dataflow
from paceline.plans.plan import Plan, make
from paceline.training.jobs.job import Job

ALL = [plan for member in PLANS for plan in member.plans()]
SYNCHRONOUS = [  # a chunk of every batch from each worker, and the user's optimizer
    plan for plan in ALL if plan.workers > 1 and isinstance(plan.method, AllReduce)
]
UPDATES = 7  # an epoch, whose last batch is smaller, and two batches of the next
FLUSHED = [
    plan
    for plan in ALL
    if isinstance(plan.method, Pipeline) and plan.method.schedule.span and plan.method.traits.synchronous
]


def enough(job: str, plan: Plan) -> str:
    """This job, or one whose model can be cut into as many stages."""
    stages = plan.method.stages(plan.workers) if isinstance(plan.method, Pipeline) else 1
    apart = isinstance(plan.method, Dataflow)  # operators share no parameter
    return "mlp" if (stages > 5 or apart) and job == "tied" else job


def swept(*columns: Sequence[Any], keep: Callable[..., bool]) -> list[Any]:
    """Every combination of the columns' entries. Those whose places in the columns `keep` refuses are left to soaks."""
    return [
        pytest.param(
            *(entry for _, entry in chosen),
            marks=[] if keep(*(place for place, _ in chosen)) else [pytest.mark.soak],
            id="-".join(str(entry) for _, entry in chosen),
        )
        for chosen in product(*(list(enumerate(column)) for column in columns))
    ]


def small(job: str, optimizer: str) -> Job:
    return JOBS[job]().with_(optimizer=OPTIMIZERS[optimizer])


@cache
def oracle(job: str, optimizer: str, chunks: int, updates: int, sizes: str = "") -> nn.Module:
    plan = make("sequential", chunks=chunks, sizes=sizes)
    return train(small(job, optimizer), plan, engine="virtual", folder=None, max_updates=updates).model


def pairs(plan: int, job: int, optimizer: int) -> bool:
    """Every plan with two jobs, and every job with every optimizer."""
    return (plan + job) % len(JOBS) in (0, 2) and (plan + job) % len(OPTIMIZERS) == optimizer


@pytest.mark.parametrize(("plan", "job", "optimizer"), swept(SYNCHRONOUS, list(JOBS), list(OPTIMIZERS), keep=pairs))
def test_same_numbers_virtual(plan: Plan, job: str, optimizer: str) -> None:
    run = train(small(job, optimizer), plan, engine="virtual", folder=None, max_updates=UPDATES)
    sizes = "+".join(map(str, plan.sizes))
    assert difference(oracle(job, optimizer, plan.parts, UPDATES, sizes), run.model) <= 1e-9


EACH_JOB = list(zip(JOBS, [*OPTIMIZERS, "momentum"], strict=True))


@pytest.mark.parametrize(("kind", "workers"), swept(EACH_JOB, [2, 5], keep=lambda kind, workers: kind % 2 == workers))
def test_same_numbers_on_real_processes(kind: tuple[str, str], workers: int) -> None:
    plan = Plan.parse("ring", workers)
    run = train(small(*kind), plan, engine="local", folder=None, max_updates=UPDATES)
    assert difference(oracle(*kind, workers, UPDATES), run.model) <= 1e-9


@pytest.mark.parametrize(
    ("plan", "kind"), swept(FLUSHED, EACH_JOB, keep=lambda plan, kind: (kind - plan) % len(EACH_JOB) == 0)
)
def test_same_numbers_of_pipelines(plan: Plan, kind: tuple[str, str]) -> None:
    job, optimizer = enough(kind[0], plan), kind[1]
    run = train(small(job, optimizer), plan, engine="virtual", folder=None, max_updates=UPDATES)
    assert difference(oracle(job, optimizer, plan.parts, UPDATES), run.model) <= 1e-9


SCHEDULES = ("layers", "gpipe", "one_f_one_b", "interleaved", "zero_bubble")
MICRO_BATCHES = {2: 7, 3: 5, 4: 3, 5: 4, 6: 9}  # by workers: more and fewer, odd and even


@cache
def deep_oracle(job: str, chunks: int) -> nn.Module:
    plan = make("sequential", chunks=chunks)
    return train(DEEP_JOBS[job](), plan, engine="virtual", folder=None, max_updates=UPDATES).model


@pytest.mark.parametrize(
    ("job", "schedule", "workers"),
    swept(list(DEEP_JOBS), SCHEDULES, list(MICRO_BATCHES), keep=lambda j, s, w: (j + s + w) % len(DEEP_JOBS) == 0),
)
def test_same_numbers_of_deep_models_in_every_schedule_on_two_to_six_workers(
    job: str, schedule: str, workers: int
) -> None:
    micro = MICRO_BATCHES[workers]
    plan = make(schedule, workers=workers, micro_batches=micro)
    run = train(DEEP_JOBS[job](), plan, engine="virtual", folder=None, max_updates=UPDATES)
    assert difference(deep_oracle(job, micro), run.model) <= 1e-9


@pytest.mark.parametrize(
    ("job", "schedule", "workers"), list(zip(DEEP_JOBS, SCHEDULES, reversed(MICRO_BATCHES), strict=True))
)
def test_same_numbers_of_deep_models_on_real_processes(job: str, schedule: str, workers: int) -> None:
    same_numbers(DEEP_JOBS[job](), make(schedule, workers=workers, micro_batches=MICRO_BATCHES[workers]), "local")


#: Methods whose program others perform on real processes: `tests/interfaces/api/test_parallel.py` compares the bits of
#: each on two processes with those of `train`, and `tests/runtime/engines/test_explorer.py` walks every interleaving of
#: each.
PERFORMED = {"tree", "halving_doubling", "hierarchical", "central", "parallel_sgd", "easgd", "diloco:every=3"}
#: Of each other plan, on the largest number of workers.
MOST = {str(member.plans()[-1]) for member in PLANS if member.plan.removesuffix(":every=2") not in PERFORMED}
#: In the virtual world the smallest number: both engines perform the same program, and so does a walk of every
#: interleaving, on numbers between them.
LEAST = {str(member.plans()[0]) for member in PLANS} | {str(member.plans()[-1]) for member in PLANS} - MOST


def each_engine(plan: int, job: int, engine: int) -> bool:
    """Of each plan one job in the virtual world, and of most the other on real processes."""
    return (plan + job + engine) % 2 == 0 and str(ALL[plan]) in (LEAST if ENGINES[engine] == "virtual" else MOST)


@pytest.mark.filterwarnings("ignore:plan sandblaster:paceline.errors.JobWarning")  # it uses no optimizer
@pytest.mark.parametrize(("plan", "job", "engine"), swept(ALL, ["residual", "tied"], ENGINES, keep=each_engine))
def test_every_run_keeps_its_invariants_and_replays(plan: Plan, job: str, engine: str) -> None:
    run = train(JOBS[enough(job, plan)](), plan, engine=engine, folder=None, max_updates=12)
    check_run(run, plan)


@pytest.mark.parametrize(
    ("job", "optimizer"), swept(list(JOBS), list(OPTIMIZERS), keep=lambda job, optimizer: (job + optimizer) % 2 == 0)
)
def test_downpour_with_one_worker_is_sequential_to_the_bit(job: str, optimizer: str) -> None:
    made = JOBS[job]().with_(optimizer=OPTIMIZERS[optimizer])
    one = train(made, "downpour:workers=1,shards=2", engine="virtual", folder=None)
    other = train(made, "sequential", engine="virtual", folder=None)
    assert one.summary()["parameters_sha256"] == other.summary()["parameters_sha256"]


def test_downpour_with_one_real_worker_is_sequential_to_the_bit() -> None:
    runs = [train(JOBS["residual"](), plan, folder=None) for plan in ("downpour:workers=1", "sequential")]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1


@pytest.mark.parametrize("plan", ["sequential:chunks=2", "ring:workers=3"])
def test_virtual_and_local_give_the_same_bits_where_the_plan_fixes_the_order(plan: str) -> None:
    runs = [train(JOBS["mlp"](), plan, engine=engine, folder=None) for engine in ENGINES]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1


SERVERS_OPTIMIZERS = {
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adadelta": torch.optim.Adadelta,
    "rmsprop": partial(torch.optim.RMSprop, lr=0.001),
    "nadam": partial(torch.optim.NAdam, lr=0.001),
    "adamw": partial(torch.optim.AdamW, lr=0.001),
    "adamax": partial(torch.optim.Adamax, lr=0.001),
    "radam": partial(torch.optim.RAdam, lr=0.001),
}


@pytest.mark.parametrize("name", SERVERS_OPTIMIZERS)
def test_any_optimizer_works_at_the_server_to_the_bit(name: str) -> None:
    made = JOBS["tied"]().with_(optimizer=SERVERS_OPTIMIZERS[name])
    plans = ("downpour:workers=1,shards=3", "sequential")
    shas = {train(made, p, engine="virtual", folder=None).summary()["parameters_sha256"] for p in plans}
    assert len(shas) == 1
    replays(train(made, "downpour:workers=3,shards=2", engine="virtual", folder=None))
