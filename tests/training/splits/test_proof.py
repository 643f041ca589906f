"""No program that waits for ever or computes something else is proved: mutants, against what they compute in fact."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from torch import nn

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.splits.proof import prove_program
from paceline.errors import PlanError
from paceline.interfaces.testing.jobs import JOBS
from paceline.training.data.opening import open_source
from paceline.training.data.source import Order
from paceline.training.jobs.job import Job
from paceline.training.stages.planning import Example
from tests.training.splits.mutations import Case, cases, computes_right, mutate
from tests.training.splits.test_experts import job as mixture


def example_of(job: Job) -> Example:
    """Return the first chunk of a job."""
    source = open_source(job.data, job.seed)
    chunk = Agenda(len(source), job.batch_size, 1).chunks(0)[0]
    return chunk, source.batch(Order(len(source), job.seed, True, [0]).indices(chunk), 0)


@cache
def all_cases() -> list[Case]:
    torch.manual_seed(0)
    found = {}
    for name in ("mlp", "residual", "tied", "transformer", "mixture"):
        job = mixture() if name == "mixture" else JOBS[name]()
        moving = ("norm.running_mean", "norm.running_var") if name == "residual" else ()
        module: nn.Module = job.make_model()
        found[name] = job, module, example_of(job), moving
    return cases(found)


def proved(case: Case, number: int) -> bool:
    """Whether a mutant is proved; fail if it is and computes something else."""
    mutant = mutate(case.program, random.Random(number))
    try:
        prove_program(mutant.program, mutant.lines)
    except PlanError:
        return False
    assert computes_right(case, mutant), f"mutant {number} is proved and wrong: {mutant.what}"
    return True


def test_no_wrong_mutant_is_proved() -> None:
    kept = sum(proved(all_cases()[n % len(all_cases())], n) for n in range(240))
    assert kept < 80, "most changes are found"


@pytest.mark.soak
def test_no_wrong_mutant_of_2000_is_proved() -> None:
    assert sum(proved(all_cases()[n % len(all_cases())], n) for n in range(2000)) < 700


def test_the_programs_themselves_are_proved_and_right() -> None:
    for case in all_cases():
        figures = prove_program(case.program)
        sent = tuple(sum(case.program.numbers(place).values()) for place in range(case.program.workers))
        assert figures.numbers == sent
