"""LocalSteps and Gossip: every worker steps a replica of its own, and after some steps replicas are averaged.

Under `LocalSteps` a collective averages all replicas (local SGD, elastic averaging, DiLoCo); under `Gossip` every
worker mixes with its neighbours on a graph only, so replicas never agree exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.collectives import Collective
from paceline.core.collectives.neighbours import Neighbours
from paceline.core.collectives.proof import prove, prove_mixing
from paceline.core.rules import Averaging
from paceline.core.streaming import Streaming
from paceline.plans.methods import Division, Traits


@dataclass(frozen=True)
class LocalSteps:
    """Averages all replicas after some local steps, whole or in fragments."""

    collective: Collective
    averaging: Averaging
    #: Parts of the parameters that are exchanged one after another.
    fragments: int = 1

    @property
    def streaming(self) -> Streaming:
        return Streaming(self.averaging.every, self.fragments)

    traits = Traits(devices="summed")

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers)

    def prove(self, workers: int) -> None:
        prove(self.collective, workers)


@dataclass(frozen=True)
class Gossip:
    """Mixes each replica with its neighbours' after some local steps."""

    collective: Neighbours
    averaging: Averaging

    @property
    def streaming(self) -> Streaming:
        return Streaming(self.averaging.every)

    traits = Traits()

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers, results=workers)  # replicas that never agree are averaged

    def prove(self, workers: int) -> None:
        prove_mixing(self.collective, workers)
