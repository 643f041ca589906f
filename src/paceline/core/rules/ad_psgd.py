"""Asynchronous decentralised SGD: nobody waits; whoever has a gradient ready first meets one neighbour halfway.

Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018 (AD-PSGD). Every worker i has
parameters x_i that the others reach. When its gradient g is ready, it draws one of its neighbours j on a graph and,
while nobody else touches the two,

    x_i, x_j  <-  (x_i + x_j) / 2
    x_i       <-  optimizer(x_i, g)

where g was computed from x_i as it was before others, and this meeting, moved it. The mean of all moves by gradients
only; the result is that mean. The neighbour is drawn from (seed, worker, batch), so a replay draws it again. A worker
that died is still met: its parameters keep what it had learnt.

Also known as asynchronous gossip SGD. The published deadlock of two workers that choose each other cannot happen here:
a meeting needs one lock, not the other worker. Not to be confused with D-PSGD (`d_psgd`), where all mix in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.chance import mix
from paceline.core.collectives.neighbours import Neighbours

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdPsgd:
    graph: str = "ring"

    def partner(self, worker: int, workers: int, seed: int, batch: int) -> int | None:
        """Whom this worker meets when the gradient of this batch is ready; nobody, when it is alone."""
        neighbours = [other for other, _ in Neighbours(self.graph).weights(worker, workers)[1:]]
        return neighbours[mix(seed, worker, batch) % len(neighbours)] if neighbours else None

    def go_on(self, replicas: list[Tensor], worker: int, workers: int) -> Tensor:
        """Where a worker begins when the run goes on: at its own replica; where their number has changed, all begin at
        the mean, which is the result so far.
        """
        if workers == len(replicas):
            return replicas[worker]
        mean = replicas[0].clone()
        for other in replicas[1:]:
            mean.add_(other)
        return mean.div_(len(replicas))

    def meet(self, mine: Tensor, theirs: Tensor) -> None:
        mine.add_(theirs).mul_(0.5)
        theirs.copy_(mine)
