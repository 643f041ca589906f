"""Asynchronous decentralised SGD: a worker whose gradient is ready averages with one neighbour, and no worker waits.

Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018 (AD-PSGD). Every worker i has
parameters x_i in memory that the others can change. When its gradient g is ready, it draws one of its neighbours j on a
graph and, while no other worker touches the two,

    x_i, x_j  <-  (x_i + x_j) / 2
    x_i       <-  optimizer(x_i, g)

where g was computed from x_i before other workers, and this average, changed it. The mean of all moves by gradients
only; the result is that mean. The neighbour is drawn from (seed, worker, batch), so a replay draws it again. A dead
worker is still averaged with: its parameters keep what it had learnt.

Also known as asynchronous gossip SGD. The published deadlock of two workers that choose each other cannot happen here:
an average needs one lock, not the other worker. Not to be confused with D-PSGD (`d_psgd`), where all mix in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.chance import mix
from paceline.algorithms.collectives.neighbours import Neighbours

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdPsgd:
    graph: str = "ring"

    def partner(self, worker: int, workers: int, seed: int, batch: int) -> int | None:
        """Return the neighbour that this worker averages with for this batch; None where it is the only worker."""
        neighbours = [other for other, _ in Neighbours(self.graph).weights(worker, workers)[1:]]
        return neighbours[mix(seed, worker, batch) % len(neighbours)] if neighbours else None

    def resume(self, replicas: list[Tensor], worker: int, workers: int) -> Tensor:
        """Return where a worker continues a saved run: at its own replica.

        Where the number of workers has changed, all continue from the mean, which is the result so far.
        """
        if workers == len(replicas):
            return replicas[worker]
        mean = replicas[0].clone()
        for other in replicas[1:]:
            mean.add_(other)
        return mean.div_(len(replicas))

    def average(self, mine: Tensor, theirs: Tensor) -> None:
        """Set both to their mean."""
        mine.add_(theirs).mul_(0.5)
        theirs.copy_(mine)
