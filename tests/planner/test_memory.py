"""The memory of workers: the tensors of a step against hand-made figures, and how a profile scales them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from paceline.jobs.job import Job
from paceline.planner.costs import BESIDES, HEAP, Profile, Profiled
from paceline.planner.memory import worker_memory
from paceline.planner.model_cost import cost_of
from paceline.plans.plan import Plan
from tests.planner.cards import costs

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
    assert cost.alone_bytes > 4 * weights + cost.peak_bytes


def test_fake_tensors_are_counted_as_real_ones() -> None:
    fake, real = cost_of(_job(), 200), cost_of(_job(looks=True), 200)
    assert real.real
    assert fake.peak_bytes == pytest.approx(real.peak_bytes, rel=0.02)


def test_a_profile_measures_how_much_of_the_heap_is_gaps() -> None:
    base, plan = costs(), Plan.parse("sequential")
    typical = worker_memory(plan, base, 100, None)
    assert typical == round(BESIDES + HEAP * base.cost(100).alone_bytes)
    measured = Profiled(base, [Profile(1, 1, 100, (1.0,), (1.0,), 0.0, 7_000_000)])
    assert worker_memory(plan, measured, 100, None) == 7_000_000
    # Under a server, parameters and the optimizer's state lie in shared memory.
    assert worker_memory(Plan.parse("downpour", 2), measured, 100, None) < 7_000_000
    unknown = Profiled(base, [Profile(1, 1, 100, (1.0,), (1.0,), 0.0)])
    assert worker_memory(plan, unknown, 100, None) == typical
