"""NativeDdp: PyTorch's own DistributedDataParallel, as a peer to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.collectives.ring import Ring
from paceline.plans.methods import Division, Method, Traits
from paceline.plans.methods.prediction import DOUBT, Estimate, Guess, Prices, Terms, error_of, sent
from paceline.plans.methods.views import Words

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
