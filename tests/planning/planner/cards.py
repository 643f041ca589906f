"""A card without noise, for tests: every figure costs a round number."""

from __future__ import annotations

from paceline.planning.planner.card import FORWARD, UPDATE, Card, DispatchedCall, ExchangeSeconds, Operations
from paceline.planning.planner.costs import Calibrated
from paceline.planning.planner.model_cost import ModelCost

COMPUTE = {"call": 1e-5, "matmul.large": 1e-10, "near": 1e-10, "far": 1e-10}
CARD = Card(
    processor="a processor",
    cores=4,
    memory=8 << 30,
    operations=tuple(Operations(busy, 1, COMPUTE, {"call": 1e-5}, 0.1) for busy in (1, 2, 4)),
    exchanges=(
        ExchangeSeconds("meeting", 2, 1e-5, 1e9, 0.1),
        ExchangeSeconds("push", 2, 1e-5, 1e9, 0.1),
        ExchangeSeconds("ddp", 2, 1e-4, 1e9, 0.1),
    ),
)


def model(samples: int) -> ModelCost:
    """A model of two operations: its forward pass takes 1 ms for 100 samples, its update 10 µs."""
    forward = DispatchedCall("aten.mm", FORWARD, "0", "matmul", 9.9e4 * samples, 0.0, 0.0, 100, 64.0 * samples)
    update = DispatchedCall("aten.add_", UPDATE, "", "plain")
    return ModelCost(samples, (forward, update), 40_000, 2, 1000 * samples, 0, 100 * samples)


def costs() -> Calibrated:
    """The costs of that model on that card."""
    found = Calibrated(CARD, model)
    found.cost(100)
    return found
