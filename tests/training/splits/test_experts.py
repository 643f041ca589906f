"""Experts divided among workers: the numbers of one process, tokens from all to all, and the layer itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import PlanError
from paceline.interfaces.testing.conformance import same_numbers
from paceline.interfaces.testing.jobs import JOBS, OPTIMIZERS, SAMPLES
from paceline.plans.plan import Plan, make
from paceline.runtime.engines.setup import set_up
from paceline.training.jobs.job import Job
from paceline.training.jobs.modules import Experts, balance_loss, bounds_of, capacity_of, dropped, route

#: Which tokens are dropped, and the even load, are of a chunk: the loss of a batch is not the mean of its halves'.
pytestmark = pytest.mark.filterwarnings("ignore:the loss is not a mean over samples")


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.router = nn.Linear(6, 8), nn.Linear(8, 5)
        self.experts, self.drop = Experts(8, 12, experts=5, groups=6), nn.Dropout(0.1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.enter(x))
        p = self.router(x).softmax(-1)
        x = x + self.drop(self.experts(x, p))
        return self.head(x.mean(1)), p


def loss(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    scores, p = model(x)
    return F.cross_entropy(scores, y) + 0.01 * balance_loss(p)


def job(optimizer: str = "momentum") -> Job:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 4, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (SAMPLES,), generator=generator)
    return JOBS["mlp"]().with_(
        model=lambda: Mixture().double(), data=(x, y), loss=None, step=loss, optimizer=OPTIMIZERS[optimizer]
    )


@pytest.mark.parametrize(
    ("plan", "optimizer"),
    [
        ("experts:workers=2", "momentum"),
        ("experts:workers=3", "adam"),
        ("experts:workers=5", "adagrad"),
        ("experts:workers=4,data=2", "momentum"),
        ("tensor:workers=2", "momentum"),
        ("zero:workers=3", "momentum"),
        ("per_layer:workers=3,ways=experts:experts+head:columns", "momentum"),
        ("gpipe:workers=2", "momentum"),
    ],
)
def test_same_numbers(plan: str, optimizer: str) -> None:
    same_numbers(job(optimizer), Plan.parse(plan), "virtual", updates=12)


def test_same_numbers_in_processes() -> None:
    same_numbers(job(), make("experts", workers=2), "local", updates=6)


def test_tokens_go_from_all_to_all_and_weights_stay() -> None:
    made = set_up(job(), make("experts", workers=2), "virtual").split
    assert made is not None
    moves = {step.value: step.movement.kind for step in made.program.forward if step.movement.travels}
    assert moves["experts#dispatch"] == moves["experts#compute"] == "exchange"
    assert not any(value.startswith("@experts.") for value in moves)
    assert made.program.stored["experts.enter"].box((5, 8, 12), 0) == ((0, 2), (0, 8), (0, 12))


def test_a_token_takes_its_most_probable_expert_while_that_has_places() -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6], [0.6, 0.4], [0.3, 0.7]], dtype=torch.float64)
    routing = route(p, (0, 3, 6), 1)
    assert routing.token.tolist() == [0, 3, 4]  # 1 and 2 come after 0 in their group, and 5 after 3
    assert routing.expert.tolist() == [0, 1, 0]
    assert routing.group.tolist() == [0, 1, 1]
    assert dropped(p, groups=2, capacity_factor=0.5) == 3
    assert dropped(p, groups=1, capacity_factor=2.0) == 0
    assert capacity_of((6, 2), 2, 1.25) == 2
    assert bounds_of(7, 3) == (0, 2, 4, 7)


def test_dropped_tokens_get_nothing() -> None:
    layer = Experts(4, 8, experts=2, groups=1, capacity_factor=0.5)
    x, p = torch.randn(6, 4), torch.tensor([[0.9, 0.1]] * 6)
    made = layer(x, p)
    assert bool((made[:2] != 0).all())
    assert made[2:].abs().max() == 0
    alone = (F.relu(x[0] @ layer.enter[0] + layer.enter_bias[0]) @ layer.leave[0] + layer.leave_bias[0]) * 0.9
    torch.testing.assert_close(made[:1], alone)


def test_an_even_load_has_a_balance_loss_of_one() -> None:
    even = torch.eye(4).repeat(3, 1)
    assert float(balance_loss(even)) == pytest.approx(1.0)
    assert float(balance_loss(torch.eye(4)[:1].repeat(12, 1))) == pytest.approx(4.0)


def test_too_few_experts_or_groups_are_refused() -> None:
    with pytest.raises(PlanError, match="experts cannot be split by experts: it has 5 experts, too few for 6 workers"):
        set_up(job(), Plan.parse("per_layer:workers=6,ways=experts:experts"), "virtual")
