"""The memory of workers with parts of layers: derived before the start, and what processes take in fact."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from paceline.errors import PlanError
from paceline.interfaces.api.train import train
from paceline.plans.plan import Plan
from paceline.runtime.engines.memory_check import chunks_each
from paceline.runtime.engines.setup import set_up
from paceline.training.jobs.job import Job
from paceline.training.splits.weighing import peaks_of_parts
from paceline.training.stages.rehearsal import examples_of

WIDTH = 1024


def job() -> Job:
    parts = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))
    adam = partial(torch.optim.Adam, lr=1e-3)
    return Job(nn.Sequential(*parts), (x, x), nn.MSELoss(), optimizer=adam, batch_size=32, epochs=2, device="cpu")


def derived(made: Job, plan: Plan) -> list[int]:
    setup = set_up(made, plan, "virtual")
    assert setup.split is not None
    example, chunks = examples_of(setup.job, setup.source, setup.agenda)[0], chunks_each(plan, setup.agenda)
    return peaks_of_parts(setup.job, setup.module, setup.split, example, chunks)


@pytest.mark.parametrize("plan", ["tensor:workers=2", "zero:workers=2", "zero:workers=2,stage=1"])
def test_processes_take_what_is_derived(plan: str) -> None:
    parsed = Plan.parse(f"{plan},memory=512")
    run, wanted = train(job(), parsed, folder=None), derived(job(), parsed)
    assert run.summary()["peak_memory"] == pytest.approx(wanted, rel=0.15)


def test_more_workers_and_higher_stages_take_less() -> None:
    found = [max(derived(job(), Plan.parse(f"zero:stage={stage},workers=4"))) for stage in (1, 2, 3)]
    assert found[0] > found[1] > found[2]
    assert max(derived(job(), Plan.parse("tensor:workers=4"))) < max(derived(job(), Plan.parse("tensor:workers=2")))


def test_a_bound_that_is_too_small_is_refused_before_the_start() -> None:
    with pytest.raises(PlanError, match=r"worker 0 would take \d+ MiB for its tensors, and memory=8; all workers"):
        train(job(), "tensor:workers=2,memory=8", folder=None)
