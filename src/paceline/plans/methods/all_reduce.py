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
from paceline.algorithms.collectives.rings import Ring
from paceline.plans.methods import IN_STEP, Division, Method, Synchronous, Traits, computed
from paceline.plans.methods.prediction import DOUBT, Estimate, Guess, Prices, Terms, error_of, meetings, sent
from paceline.plans.methods.program import Gradient, OptimizerStep, Program, Sum, Worker
from paceline.plans.methods.views import FITTING, OWN_STEP, Summing, Timeline, Words


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
        yield OptimizerStep(update, update + 1, total)

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


# Alone: workers that exchange nothing. One worker is sequential training; several measure the ceiling.


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
        yield OptimizerStep(update, version + 1, gradient)

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


# NativeDdp: PyTorch's own DistributedDataParallel, as a peer to compare with.

#: Why a gradient cannot be looked at before it is added up.
SUMMED = "PyTorch sums gradients while they are computed"


@dataclass(frozen=True)
class NativeDdp(Method):
    """Trains under DistributedDataParallel."""

    traits = Traits(
        agrees=True,
        whole_batch=True,
        devices="native",
        traced=False,
        not_replayable="PyTorch does not record in which order gradients were added",
        needs_train="is what your script does without Paceline",
        cannot_skip=SUMMED,
        cannot_scale=SUMMED,
        local_only="is PyTorch's own code and runs on real processes only",
        one_machine="PyTorch forms its process group itself, and does not survive a death; ring computes the same",
    )
    family = copies = "ddp"

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers)

    def prove(self, workers: int) -> None:
        """Do nothing: PyTorch's collectives have no table."""

    def predict(self, prices: Prices) -> Estimate:
        workers, size = prices.workers, prices.payload
        c, u, x = prices.compute(prices.samples(workers)), prices.update(), prices.whole("ddp", Ring(), size)
        wait, between = prices.waiting(workers, c.seconds), prices.between("ddp")
        terms = Terms(c.seconds, u.seconds, x.seconds, wait, between)
        return Estimate(terms, error_of(c, u), error_of(x, Guess(between + wait, DOUBT)), sent(Ring(), workers, size))

    def picture(self, workers: int) -> Words:
        return Words("What its workers do is decided inside PyTorch: there is nothing of Paceline's to draw.")

    def claim(self, workers: int) -> Words:
        return Words("Its all-reduce is PyTorch's own code, not a table of Paceline's.")
