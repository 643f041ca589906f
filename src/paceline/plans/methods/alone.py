"""Alone: workers that exchange nothing. One worker is sequential training; several measure the ceiling."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plans.methods import IN_STEP, Division, Synchronous, Traits
from paceline.plans.methods.prediction import DOUBT, Estimate, Guess, Prices, Terms, error_of
from paceline.plans.methods.program import Gradient, Program, Step, Worker
from paceline.plans.methods.views import FITTING, OWN_STEP, Timeline, Words


@dataclass(frozen=True)
class Alone(Synchronous):
    """Trains every worker on its own."""

    collective = None
    traits = Traits(
        exchanges=False,
        whole_batch=True,
        one_model=True,
        takes_sparse=True,
        knows_loss=True,
        devices="alone",
        one_machine=f"its workers exchange nothing; plans for several nodes are {IN_STEP}",
    )

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

    def predict(self, prices: Prices) -> Estimate:
        each, u = prices.compute(prices.samples(prices.chunks)), prices.update()
        c = Guess(each.seconds * prices.chunks, each.error)
        terms = Terms(c.seconds, u.seconds, between=prices.between("alone")).scaled(1 / prices.workers)
        return Estimate(terms, error_of(c, u), DOUBT)

    def picture(self, workers: int) -> Timeline:
        return Timeline(FITTING * workers, (OWN_STEP,))

    def claim(self, workers: int) -> Words:
        return Words("Its workers exchange nothing, so no worker waits.")
