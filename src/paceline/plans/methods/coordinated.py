"""Coordinated: a coordinator commands every update, which may evaluate a batch several times (Sandblaster L-BFGS)."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.collectives import Collective
from paceline.core.collectives.proof import prove
from paceline.core.coordinators import Coordinator
from paceline.plans.methods import Division, Traits


@dataclass(frozen=True)
class Coordinated:
    """Lets a coordinator command every update."""

    collective: Collective
    coordinator: Coordinator

    streaming = None
    traits = Traits(
        uses_optimizer=False,
        repeats=True,
        shares_parameters=True,
        checks_finite=False,  # a line search tries steps that are too long
        needs_train="evaluates a batch several times in one step",
        cannot_clip="its line search compares the loss with the gradient as it is",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers)

    def prove(self, workers: int) -> None:
        prove(self.collective, workers)
