"""Parallel SGD as map and reduce: a model is trained on each part of the data; the result is their mean.

Zinkevich, Weimer, Smola and Li, "Parallelized stochastic gradient descent", NeurIPS 2010, algorithm 3: the data are
shuffled and cut into parts once; for every part i, all from the same start w_0,

    map       w_i  <-  SGD(w_0, part i)
    reduce    w    <-  (w_1 + ... + w_N) / N

A part is a lease: a free worker takes the next one, so there may be many more parts than workers, and the part of a
dead worker is trained again by another, to the same bits. The user's optimizer starts without state for each part, and
a schedule counts the part's own steps. Not to be confused with `model_averaging`, where each worker's chunk of every
batch is its own and the parts change from epoch to epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MapReduce:
    parts: int
    every = 1

    def remembers(self, parameter: Tensor) -> Memory:
        return {}

    def carries(self, parameter: Tensor) -> Memory:
        return {"start": parameter.detach().clone()}

    def exchange(self, centre: Tensor, memory: Memory, mine: Tensor, carried: Memory) -> None:
        centre.add_(mine - carried["start"], alpha=1.0 / self.parts)
