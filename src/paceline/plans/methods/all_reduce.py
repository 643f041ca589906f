"""AllReduce: the workers' gradients are summed in every update, then each worker makes the same step.

worker                                            its peers
──────                                            ─────────
computes its chunks of the batch                  the same
walks the collective's table with the gradient ◀▶ the same table, their rows
the user's optimizer makes the step               the same step, bit for bit
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.canonical import Canonical
from paceline.algorithms.collectives.proof import prove
from paceline.algorithms.collectives.ring import Ring
from paceline.plans.methods import Division, Synchronous, Traits, computed
from paceline.plans.methods.prediction import Estimate, Prices, meetings
from paceline.plans.methods.program import Gradient, Program, Step, Sum, Worker
from paceline.plans.methods.views import Summing


@dataclass(frozen=True)
class AllReduce(Synchronous):
    """Adds all gradients up in every update."""

    collective: Collective

    traits = Traits(
        agrees=True,
        sums_gradients=True,
        whole_batch=True,
        one_model=True,
        knows_loss=True,
        shares_parameters=True,
        devices="summed",
    )
    family = "meeting"

    @computed
    def sums_messages(self) -> bool:
        return not isinstance(self.collective, Ring)  # around a ring, messages go to all as they are

    def program(self, worker: Worker) -> Program:
        for update in worker.updates():
            yield from self._update(update)

    def _update(self, update: int) -> Program:
        gradient = yield Gradient(update, version=update)
        total = yield Sum(update, gradient)
        yield Step(update, update + 1, total)

    def canonical(self, chunks: int, sizes: tuple[int, ...]) -> AllReduce:
        return AllReduce(Canonical(self.collective, chunks, sizes))

    def division(self, workers: int, chunks: int) -> Division:
        return Division(self.collective.chunks if isinstance(self.collective, Canonical) else workers)

    def prove(self, workers: int) -> None:
        prove(self.collective, workers)

    def predict(self, prices: Prices) -> Estimate:
        return meetings(prices, self.collective, 1, prices.workers)

    def picture(self, workers: int) -> Summing:
        return Summing(self.collective)

    claim = picture
