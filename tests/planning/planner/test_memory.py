"""The memory of workers: the tensors of a step against hand-made figures, and how a profile scales them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from paceline.planning.planner.card import Overhead
from paceline.planning.planner.costs import Calibrated
from paceline.planning.planner.facts import Facts, ModelDivision
from paceline.planning.planner.memory import BESIDES, RECURRENT, replica_bytes, stage_bytes, worker_memory
from paceline.planning.planner.methods import predict
from paceline.planning.planner.model_cost import cost_of
from paceline.planning.planner.profiled import Profile, Profiled, learn
from paceline.plans.plan import Plan, make
from paceline.training.jobs.job import Job
from tests.planning.planner.cards import costs

# --- What a plan that was measured says of others of its family -------------------------------------------------------

FACTS = Facts(100, 40_000, 40_000)
DIVISION = ModelDivision(1000.0, 0, 2, 2, 0.5, {"0": 0.5})


@pytest.mark.parametrize("name", ["ring", "downpour", "ddp", "tensor"])
def test_a_plan_that_was_measured_is_predicted_as_it_was(name: str) -> None:
    plan = make(name, workers=2)
    found = Profiled(costs(), [])
    facts = replace(FACTS, division=DIVISION) if name == "tensor" else FACTS
    took = 1.3 * predict(plan, found, facts).seconds
    learn(found, plan, facts, took, 0)
    assert predict(plan, found, facts).seconds == pytest.approx(took)


def test_others_of_the_family_take_as_much_longer() -> None:
    found, ring, tree = Profiled(costs(), []), make("ring", workers=2), make("tree", workers=2)
    before = predict(tree, found, FACTS)
    own = predict(ring, found, FACTS).terms.own
    learn(found, ring, FACTS, own + 3 * predict(ring, found, FACTS).terms.rest, 0)
    after = predict(tree, found, FACTS)
    assert after.terms.own == before.terms.own
    assert after.terms.rest == pytest.approx(3 * before.terms.rest)
    assert predict(make("ddp", workers=2), found, FACTS).terms.rest > 0  # of another family, as before


def test_workers_that_were_weighed_scale_those_that_exchange_alike() -> None:
    found, ring = Profiled(costs(), []), make("ring", workers=2)
    before = predict(ring, found, FACTS).memory
    learn(found, ring, FACTS, 1.0, 2 * before)
    assert predict(ring, found, FACTS).memory == pytest.approx(2 * before, rel=0.01)
    assert predict(make("tree", workers=2), found, FACTS).memory == pytest.approx(2 * before, rel=0.01)


def test_a_card_may_say_how_far_plans_are_off() -> None:
    base = costs()
    card = replace(base.card, overheads=(Overhead("meeting", 2, 2.0, 0.2),))
    slower = Calibrated(card, base.costs)
    slower.cost(100)
    ring = make("ring", workers=2)
    assert predict(ring, slower, FACTS).terms.rest == pytest.approx(2 * predict(ring, base, FACTS).terms.rest)


def test_three_short_steps_on_two_cores_run_one_after_the_other() -> None:
    base = costs()
    two = Calibrated(replace(base.card, cores=2), base.costs)
    two.cost(100)
    three, four = (predict(make("ring", workers=count), two, FACTS) for count in (3, 4))
    assert three.terms.compute + three.terms.wait == pytest.approx(three.terms.compute / 1.5 * 2)
    assert four.terms.wait == 0


WIDE = 512


class _Looks(nn.Module):
    """Two layers; where it looks at a number, it cannot run in fake mode."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.first, self.last, self.looks = nn.Linear(64, WIDE, bias=False), nn.Linear(WIDE, 2, bias=False), looks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).tanh()
        found: torch.Tensor = self.last(y if not self.looks or y[0, 0].item() < 2 else -y)
        return found


def _job(looks: bool = False) -> Job:
    data = torch.randn(200, 64), torch.zeros(200, dtype=torch.long)
    return Job(partial(_Looks, looks), data, nn.CrossEntropyLoss(), optimizer=partial(torch.optim.Adam, lr=0.1))


def test_the_peak_of_a_step_is_in_its_backward() -> None:
    """What goes into tanh and what comes out, while the gradient of either is made, and those of both weights."""
    cost, hidden = cost_of(_job(), 200), 4 * 200 * WIDE
    weights = 4 * (64 * WIDE + 2 * WIDE)
    assert not cost.real
    # What tanh has made is kept; its gradient and that of what it took exist for a moment. The small rest is of the
    # loss and of operations.
    assert 2 * hidden < cost.peak_bytes < 3 * hidden + weights + 40_000
    assert cost.state_bytes >= 2 * weights
    assert replica_bytes(cost, "alone") > 4 * weights + cost.peak_bytes


def test_fake_tensors_are_counted_as_real_ones() -> None:
    fake, real = cost_of(_job(), 200), cost_of(_job(looks=True), 200)
    assert real.real
    assert fake.peak_bytes == pytest.approx(real.peak_bytes, rel=0.02)


def test_a_profile_scales_the_formula() -> None:
    base, plan = costs(), Plan.parse("sequential")
    typical = worker_memory(plan, base, 100, None)
    assert typical == round(replica_bytes(base.cost(100), "alone"))
    measured = Profiled(base, [Profile(1, 1, 100, (1.0,), (1.0,), 0.0, 2 * typical)])
    assert worker_memory(plan, measured, 100, None) == pytest.approx(2 * typical, abs=1)
    # Under a server, parameters and the optimizer's state lie in shared memory.
    assert worker_memory(Plan.parse("downpour", 2), measured, 100, None) < 2 * typical
    unknown = Profiled(base, [Profile(1, 1, 100, (1.0,), (1.0,), 0.0)])
    assert worker_memory(plan, unknown, 100, None) == typical


def test_stages_that_were_weighed_are_not_scaled_by_a_profile() -> None:
    """Real micro-batches have counted what libraries take, and a whole replica has it as well: once is enough."""
    base, plan = costs(), Plan.parse("gpipe", 2)
    measured = Profiled(base, [Profile(1, 1, 100, (1.0,), (1.0,), 0.0, 60_000_000)])
    division = ModelDivision(1.0, memory=8 << 20)
    assert worker_memory(plan, measured, 100, division) == worker_memory(plan, base, 100, division)


def test_recurrent_layers_take_some_memory_whatever_their_size() -> None:
    model = nn.LSTM(4, 4, batch_first=True)
    job = Job(model, (torch.randn(8, 3, 4), torch.zeros(8)), step=_sum, batch_size=8, optimizer=torch.optim.SGD)
    cost = cost_of(job, 8)
    assert RECURRENT + BESIDES < replica_bytes(cost, "alone") < RECURRENT + BESIDES + 100_000
    assert stage_bytes(cost, 0.0) == RECURRENT + BESIDES


def _sum(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    found: torch.Tensor = module(batch[0])[0].sum()
    return found
