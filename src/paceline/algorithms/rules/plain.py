"""The plain rule: the optimizer takes the gradient as it is, however old.

    w  <-  optimizer(w, g(w_pulled))

Used by every synchronous plan (where w_pulled = w) and by Downpour SGD (Dean et al., NeurIPS 2012), where it is
known as "no compensation" or ASGD. Not to be confused with torch.optim.ASGD, which averages the iterates of one
process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.rules import GradientUpdate, Memory, Store

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Plain:
    uses_pulled = False

    def remembers(self, parameter: Tensor) -> Memory:
        return {}

    def update(self, store: Store, arrival: GradientUpdate) -> None:
        store.step(arrival.gradients)
