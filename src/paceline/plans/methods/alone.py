"""Alone: workers that exchange nothing. One worker is sequential training; several measure the ceiling."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plans.methods import Division, Traits


@dataclass(frozen=True)
class Alone:
    """Trains every worker on its own."""

    collective = streaming = None
    traits = Traits(takes_sparse=True, knows_loss=True, devices="alone")

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks)

    def prove(self, workers: int) -> None:
        """Do nothing: without exchanges no worker waits."""
