"""Delay compensation: bend an old gradient towards what it would be at the newest parameters.

Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017 (arXiv 2016). A Taylor step
from the parameters the gradient was computed from, w_old, to the newest, w, with the outer product of the gradient as a
cheap stand-in for the Hessian:

    constant    g'  =  g  +  lam * g * g * (w - w_old)
    adaptive    m   <-  decay * m + (1 - decay) * g * g
                g'  =  g  +  lam / sqrt(m + eps) * g * g * (w - w_old)

With lam = 0 it is Downpour. The products are element by element. The gradient should be the loss's own: what the user's
optimizer adds to it (weight decay, momentum) comes afterwards. Not to be confused with staleness-aware learning rates
(Zhang et al., IJCAI 2016), which only make old gradients smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.rules import GradientUpdate, Store

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-7
PUBLISHED_LAMBDA = {"constant": 0.04, "adaptive": 2.0}


@dataclass(frozen=True)
class DcAsgd:
    lam: float = 0.04
    mode: str = "constant"
    decay: float = 0.95
    uses_pulled = True

    def remembers(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"mean_square": parameter.new_zeros(parameter.shape)} if self.mode == "adaptive" else {}

    def update(self, store: Store, arrival: GradientUpdate) -> None:
        if self.lam == 0:
            store.step(arrival.gradients)
            return
        bent: list[Tensor | None] = []
        for number, gradient in enumerate(arrival.gradients):
            if gradient is None:
                bent.append(None)
                continue
            newest, old = store.values[number], arrival.pulled[number]
            square = gradient * gradient
            drift = (newest - old).mul_(square).mul_(self.lam)
            if self.mode == "adaptive":
                mean_square = store.memory[number]["mean_square"]
                mean_square.mul_(self.decay).add_(square, alpha=1 - self.decay)
                drift.div_((mean_square + EPSILON).sqrt_())
            bent.append(drift.add_(gradient))
        store.step(bent)
