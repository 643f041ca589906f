"""DiLoCo: many local steps of the user's optimizer, then one outer step along their mean.

Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023. From the shared parameters
w every worker makes `every` inner steps (published: AdamW) to w_i; then, with the outer gradient d and Nesterov's
momentum,

    d  =  mean(w - w_i)
    v  <-  momentum * v + d
    w  <-  w - rate * (d + momentum * v)

Asynchronously (`OuterExchange`; Liu et al., "Asynchronous local-SGD training for language modeling", 2024), the server
makes an outer step for each arrival, with that worker's d = (w_pulled - w_i) / P, and the worker continues from the new
w. The division by P makes P arrivals move as far as one average of all.

All workers continue from w, each with its own inner optimizer's state. With rate 1 and momentum 0 it is `local_sgd`.
Also known as federated averaging with server momentum (FedAvgM, Hsu et al., 2019) and as BMUF (Chen and Huo, 2016),
which differ in the momentum's form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Diloco:
    every: int = 50
    rate: float = 0.7
    momentum: float = 0.9
    mixes_first = False

    def remembers(self, parameter: Tensor) -> Memory:
        return {"shared": parameter.detach().clone(), "velocity": parameter.new_zeros(parameter.shape)}

    def contribution(self, value: Tensor, memory: Memory) -> Tensor:
        return memory["shared"] - value

    def apply_mean(self, value: Tensor, memory: Memory, mean: Tensor) -> None:
        shared, velocity = memory["shared"], memory["velocity"]
        velocity.mul_(self.momentum).add_(mean)
        shared.sub_(mean + self.momentum * velocity, alpha=self.rate)
        value.copy_(shared)

    def result(self, value: Tensor, memory: Memory) -> Tensor:
        return value


@dataclass(frozen=True)
class OuterExchange:
    workers: int
    every: int = 50
    rate: float = 0.7
    momentum: float = 0.9
    parts = 0

    def remembers(self, parameter: Tensor) -> Memory:
        return {"velocity": parameter.new_zeros(parameter.shape)}

    def carries(self, parameter: Tensor) -> Memory:
        return {"pulled": parameter.detach().clone()}

    def exchange(self, centre: Tensor, memory: Memory, mine: Tensor, carried: Memory) -> None:
        outer = (carried["pulled"] - mine).div_(self.workers)
        velocity = memory["velocity"].mul_(self.momentum).add_(outer)
        centre.sub_(outer + self.momentum * velocity, alpha=self.rate)
        mine.copy_(centre)
        carried["pulled"].copy_(centre)
