"""Decentralised parallel SGD: no centre at all; everyone mixes its parameters with its neighbours' in every step.

Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017 (D-PSGD). With doubly
stochastic weights W over a graph, and g_i the gradient at w_i as it was before the mixing,

    w_i  <-  sum over neighbours j of W_ij w_j
    w_i  <-  optimizer(w_i, g_i)

The result is the mean of all replicas, which no meeting ever makes. On the complete graph with plain SGD this is the
synchronous plan. Also known as gossip SGD. Not to be confused with AD-PSGD (Lian et al., ICML 2018), where pairs mix
without waiting for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DPsgd:
    every: int = 1
    mixes_first = True

    def remembers(self, parameter: Tensor) -> Memory:
        return {}

    def brings(self, value: Tensor, memory: Memory) -> Tensor:
        return value

    def takes(self, value: Tensor, memory: Memory, mean: Tensor) -> None:
        value.copy_(mean)

    def result(self, value: Tensor, memory: Memory) -> Tensor:
        return value
