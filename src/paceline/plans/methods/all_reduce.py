"""AllReduce: every worker computes its chunks of a batch, and a collective adds the gradients up in every update."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.collectives import Collective
from paceline.core.collectives.proof import prove
from paceline.plans.methods import Division, Traits


@dataclass(frozen=True)
class AllReduce:
    """Adds all gradients up in every update."""

    collective: Collective

    streaming = None
    traits = Traits(agrees=True, knows_loss=True, shares_parameters=True, devices="summed")

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers)

    def prove(self, workers: int) -> None:
        prove(self.collective, workers)
