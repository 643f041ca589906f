"""How a plan divides a model among workers, as the engine would: what stages or parts of layers compute and send.

It is worked out from what workers are given to run (`api.dividing`), so its bytes are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.planning.planner.costs import LayerSeconds


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

    @property
    def mean_share(self) -> float:
        """The share of the layers that a worker computes, each counting alike."""
        return sum(self.computed.values()) / len(self.computed) if self.computed else 1.0

    def share(self, module: str) -> float:
        """Return the share of a module that a worker computes: its own, or that of the layer it belongs to."""
        while module and module not in self.computed:
            module = module.rpartition(".")[0]
        return self.computed.get(module, 1.0)


def layers_share(layers: Mapping[str, LayerSeconds], division: ModelDivision) -> float:
    """Return the share of a model's seconds that a worker computes; what has no share is whole."""
    rows = [(each.forward + each.backward, division.share(name)) for name, each in layers.items()]
    return sum(work * share for work, share in rows) / (sum(work for work, _ in rows) or 1.0)
