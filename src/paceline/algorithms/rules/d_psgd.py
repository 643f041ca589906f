"""Decentralised parallel SGD: no centre; in every step each worker mixes its parameters with its neighbours'.

Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017 (D-PSGD). With doubly
stochastic weights W over a graph, and g_i the gradient at w_i as it was before the mixing,

    w_i  <-  sum over neighbours j of W_ij w_j
    w_i  <-  optimizer(w_i, g_i)

The result is the mean of all replicas, which no collective computes. On the complete graph with plain SGD this is the
synchronous plan. Also known as gossip SGD. Not to be confused with AD-PSGD (Lian et al., ICML 2018), where pairs mix
without waiting for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.rules.model_averaging import ModelAveraging


@dataclass(frozen=True)
class DPsgd(ModelAveraging):
    """Model averaging after every step, where the mean is that of the neighbours and comes before the own step."""

    every: int = 1
    mixes_first = True
