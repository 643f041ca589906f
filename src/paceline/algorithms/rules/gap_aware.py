"""Gap-Aware: divide an old gradient by how far the parameters have moved since it was computed.

Barkai, Hakimi and Schuster, "Gap-aware mitigation of gradient staleness", ICLR 2020. The gap of a parameter is the way
from where its gradient was computed, w_old, to where the gradient is applied, w. It is counted in steps of the usual
size, C:

    g'  =  g / (1 + |w - w_old| / C)
    C   =  sqrt(m / (1 - decay^k)),  m  <-  decay * m + (1 - decay) * step^2      after each of k updates

All of it is element by element. Where nothing has moved, the gradient is applied as it is: one worker trains as under
Downpour. The paper estimates the step from the learning rate and the momentum of SGD; here it is the step that the
user's optimizer has made. Not to be confused with staleness-aware learning rates (Zhang et al., IJCAI 2016), which
count the updates in between, whether or not they have moved this parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.rules import GradientUpdate, Memory, Store

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = 1e-30  # a step, where there has been none


@dataclass(frozen=True)
class GapAware:
    decay: float = 0.99
    uses_pulled = True

    def remembers(self, parameter: Tensor) -> Memory:
        # `weight` is 1 - decay^k.
        return {"mean_square": parameter.new_zeros(parameter.shape), "weight": parameter.new_zeros(())}

    def update(self, store: Store, arrival: GradientUpdate) -> None:
        before = [value.clone() for value in store.values]
        damped: list[Tensor | None] = []
        for gradient, newest, old, memory in zip(arrival.gradients, before, arrival.pulled, store.memory, strict=True):
            if gradient is None:
                damped.append(None)
                continue
            step = (memory["mean_square"] / memory["weight"].clamp(min=SMALLEST)).sqrt_().clamp_(min=SMALLEST)
            damped.append(gradient / (newest - old).abs_().div_(step).add_(1))
        store.step(damped)
        for gradient, newest, value, memory in zip(damped, before, store.values, store.memory, strict=True):
            if gradient is not None:
                memory["mean_square"].lerp_((value - newest).square_(), 1 - self.decay)
                memory["weight"].lerp_(memory["weight"].new_ones(()), 1 - self.decay)
