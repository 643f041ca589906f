"""Alone: workers that exchange nothing. One worker is sequential training; several measure the ceiling."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plans.methods import Division, Traits
from paceline.plans.methods.program import Gradient, Program, Step, Worker


@dataclass(frozen=True)
class Alone:
    """Trains every worker on its own."""

    collective = averaging = streaming = coordinator = None
    traits = Traits(takes_sparse=True, knows_loss=True, devices="alone")

    def program(self, worker: Worker) -> Program:
        for update in worker.updates(dealt=True):
            yield from self._update(update, version=update // worker.workers)

    def _update(self, update: int, version: int) -> Program:
        gradient = yield Gradient(update, version, whole=True)
        yield Step(update, version + 1, gradient)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks)

    def prove(self, workers: int) -> None:
        """Do nothing: without exchanges no worker waits."""
