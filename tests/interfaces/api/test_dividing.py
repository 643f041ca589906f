"""Predicted bytes are those that the trace of real processes counts, for every plan that the planner predicts."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from paceline.interfaces.api.planning.choose import Planner, facts_of
from paceline.interfaces.api.planning.dividing import Divider
from paceline.interfaces.api.planning.measuring import measure
from paceline.planning.planner.costs import Calibrated
from paceline.planning.planner.model_cost import cost_of
from paceline.planning.planner.prediction import Candidate
from paceline.plans.methods.all_reduce import NativeDdp
from paceline.plans.methods.coordinated import Coordinated
from paceline.plans.methods.split_layers import Dataflow
from paceline.plans.plan import RECIPES, Plan, make
from paceline.training.jobs.job import Job
from tests.planning.planner.cards import CARD

#: A cut by measured time may be another one in the run, where the machine is busy.
BY_COUNT = ",balance=operations"
#: One of each kind of arithmetic: the rest belongs to `make soak`.
SOME = (
    "ring:workers=2",
    "local_sgd:workers=2,every=4",
    "downpour:workers=2",
    "hogwild:workers=2",
    "gpipe:workers=2" + BY_COUNT,
    "distbelief:workers=2" + BY_COUNT,
    "interleaved:workers=2" + BY_COUNT,
    "pipedream:workers=2" + BY_COUNT,
    "zero:workers=2",
    "zero:workers=2,stage=1",
    "tensor:workers=4,data=2",
)
NEEDS_FOUR = ("cannon", "hierarchical")
NOT_COUNTED = ("sequential", "table")  # sends nothing; a user's own
ONCE = "parallel_sgd"  # averages once, at the end of the training, so in no update


def _planner() -> Planner:
    torch.manual_seed(1)
    widths = (32, 64, 48, 16)
    layers = [each for a, b in pairwise(widths) for each in (nn.Linear(a, b), nn.ReLU())]
    data = torch.randn(640, 32), torch.randint(4, (640,))
    job = Job(
        nn.Sequential(*layers, nn.Linear(16, 4)),
        data,
        nn.CrossEntropyLoss(),
        batch_size=64,
        name="small",
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        device="cpu",
    )
    facts, updates = facts_of(job)
    costs = Calibrated(CARD, partial(cost_of, job))
    costs.cost(64)
    return Planner(job, CARD, facts, updates, {"autograd": costs}, Divider(job, weighs=False))


def _every() -> list[str]:
    """Return every plan that real processes run and whose bytes the trace counts."""
    found = [
        f"{name}:workers={4 if name in NEEDS_FOUR else 2}{BY_COUNT * ('balance' in RECIPES[name].options)}"
        for name in RECIPES
        if name not in (*NOT_COUNTED, ONCE) and not isinstance(make(name).method, Coordinated | Dataflow | NativeDdp)
    ]
    more = ("easgd:workers=2,mode=asynchronous", "gossip:workers=2,mode=asynchronous", "downpour:workers=2,shards=2")
    return [*found, *more, "zero:workers=2,stage=2", "gossip:workers=4", "diloco:workers=2,mode=asynchronous"]


def _same_bytes(plan: str, updates: int) -> None:
    planner = _planner()
    predicted = planner.predict(Candidate(Plan.parse(plan)))
    assert predicted is not None
    measured = measure(planner.job, predicted.plan, updates)
    assert predicted.bytes == pytest.approx(measured.bytes, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("plan", SOME)
def test_bytes_are_exact(plan: str) -> None:
    _same_bytes(plan, 8)


@pytest.mark.soak
@pytest.mark.parametrize("plan", _every())
def test_bytes_of_every_plan_are_exact(plan: str) -> None:
    _same_bytes(plan, 10)


def test_what_cannot_divide_the_model_is_not_predicted() -> None:
    planner = _planner()
    assert planner.predict(Candidate(Plan.parse("gpipe:workers=40"))) is None


def test_a_model_is_divided_once() -> None:
    divider = _planner().divider
    assert divider is not None
    plan = Plan.parse("tensor:workers=2")
    found = divider.divide(plan)
    assert found is divider.divide(plan)
    assert found is not None
    assert 0.5 <= found.held < 0.6
    assert divider.divide(Plan.parse("ring:workers=2")) is None
