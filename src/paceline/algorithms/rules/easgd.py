"""Elastic averaging: a spring between every worker and a centre.

Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015. Every `every` local steps,
with the parameters x_i of P workers and the centre c as they were before,

    x_i  <-  x_i - spring * (x_i - c)
    c    <-  c + P * spring * (mean(x) - c)

The result is the centre. Asynchronously (`ElasticExchange`), one worker at a time is exchanged with the centre
when it has made its steps, and both move by the same pull:

    pull = spring * (x_i - c);    x_i  <-  x_i - pull;    c  <-  c + pull

The momentum form, EAMSGD, is this with a torch optimizer that has Nesterov momentum, which runs at the worker.
The published choice is spring = 0.9 / P. Not to be confused with model averaging
(`local_sgd`), where every worker takes the mean itself and so stops exploring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Easgd:
    workers: int
    every: int = 10
    spring: float | None = None  # 0.9 / workers
    mixes_first = False

    def remembers(self, parameter: Tensor) -> Memory:
        return {"centre": parameter.detach().clone()}

    def contribution(self, value: Tensor, memory: Memory) -> Tensor:
        return value

    def apply_mean(self, value: Tensor, memory: Memory, mean: Tensor) -> None:
        centre = memory["centre"]
        spring = _spring(self.spring, self.workers)
        value.sub_(value - centre, alpha=spring)
        centre.add_(mean - centre, alpha=self.workers * spring)

    def result(self, value: Tensor, memory: Memory) -> Tensor:
        return memory["centre"]


@dataclass(frozen=True)
class ElasticExchange:
    workers: int
    every: int = 10
    spring: float | None = None
    parts = 0

    def remembers(self, parameter: Tensor) -> Memory:
        return {}

    def carries(self, parameter: Tensor) -> Memory:
        return {}

    def exchange(self, centre: Tensor, memory: Memory, mine: Tensor, carried: Memory) -> None:
        pull = (mine - centre).mul_(_spring(self.spring, self.workers))
        mine.sub_(pull)
        centre.add_(pull)


def _spring(spring: float | None, workers: int) -> float:
    return 0.9 / workers if spring is None else spring
