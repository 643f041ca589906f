"""Model averaging: workers train on their own for a while, then all take the mean of their parameters.

    w_i  <-  (w_1 + ... + w_P) / P        after every `every` local steps

- every = 0, once at the end: `parallel_sgd`, Zinkevich et al., "Parallelized stochastic gradient descent", NeurIPS
  2010;
- every = h: `local_sgd`, Stich, "Local SGD converges fast and communicates little", ICLR 2019; also known as periodic
  or iterative averaging, and as the core of federated averaging (McMahan et al., 2017).

A local step sees the worker's chunk of the batch, so with plain SGD and every = 1 it is the synchronous plan. The state
of the user's optimizer (momentum) stays with the worker. Not to be confused with averaging the iterates of one
process (torch.optim.swa_utils).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ModelAveraging:
    every: int = 10
    mixes_first = False

    def remembers(self, parameter: Tensor) -> Memory:
        return {}

    def contribution(self, value: Tensor, memory: Memory) -> Tensor:
        return value

    def apply_mean(self, value: Tensor, memory: Memory, mean: Tensor) -> None:
        value.copy_(mean)

    def result(self, value: Tensor, memory: Memory) -> Tensor:
        return value
