"""How a plan divides a model among workers, as the engine would: what stages or parts of layers compute and send.

It is worked out from what workers are given to run (`api.dividing`), so its bytes are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.planner.model_cost import ModelCost


@dataclass(frozen=True)
class ModelDivision:
    """What one plan makes of one model; in an update, on average over workers."""

    #: Bytes that a worker sends.
    bytes: float
    #: Bytes of the tensors of the largest worker; 0 where they were not counted.
    memory: int = 0
    #: Messages that a worker sends, where it has parts of layers.
    messages: int = 0
    #: Pieces between two movements, each of which has its own Python.
    segments: int = 0
    #: The share of the parameters' bytes that a worker holds; 0 under a pipeline.
    held: float = 0.0
    #: The share of each layer that a worker computes.
    computed: Mapping[str, float] = field(default_factory=dict)


def layers_share(cost: ModelCost, division: ModelDivision) -> float:
    """Return the share of a model's floating-point operations that a worker computes; what has no share is whole."""
    rows = [(row["flops"] + row["bytes"], division.computed.get(name, 1.0)) for name, row in cost.layers.items()]
    return sum(work * share for work, share in rows) / max(1.0, sum(work for work, _ in rows))
