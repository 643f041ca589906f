"""Rules for a gradient that arrives at a server, however old: taken as it is, corrected, or made smaller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.rules import GradientUpdate, Memory, Store

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Plain:
    """The plain rule: the optimizer takes the gradient as it is, however old.

        w  <-  optimizer(w, g(w_pulled))

    Used by every synchronous plan (where w_pulled = w) and by Downpour SGD (Dean et al., NeurIPS 2012), where it is
    known as "no compensation" or ASGD. Not to be confused with torch.optim.ASGD, which averages the iterates of one
    process.
    """

    uses_pulled = False

    def remembers(self, parameter: Tensor) -> Memory:
        return {}

    def update(self, store: Store, arrival: GradientUpdate) -> None:
        store.step(arrival.gradients)


EPSILON = 1e-7
PUBLISHED_LAMBDA = {"constant": 0.04, "adaptive": 2.0}


@dataclass(frozen=True)
class DcAsgd:
    """Delay compensation: bend an old gradient towards what it would be at the newest parameters.

    Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017 (arXiv 2016). A Taylor
    step from the parameters the gradient was computed from, w_old, to the newest, w, with the outer product of the
    gradient as a cheap stand-in for the Hessian:

        constant    g'  =  g  +  lam * g * g * (w - w_old)
        adaptive    m   <-  decay * m + (1 - decay) * g * g
                    g'  =  g  +  lam / sqrt(m + eps) * g * g * (w - w_old)

    With lam = 0 it is Downpour. The products are element by element. The gradient should be the loss's own: what the
    user's optimizer adds to it (weight decay, momentum) comes afterwards. Not to be confused with staleness-aware
    learning rates (Zhang et al., IJCAI 2016), which only make old gradients smaller.
    """

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


SMALLEST = 1e-30  # a step, where there has been none


@dataclass(frozen=True)
class GapAware:
    """Gap-Aware: divide an old gradient by how far the parameters have moved since it was computed.

    Barkai, Hakimi and Schuster, "Gap-aware mitigation of gradient staleness", ICLR 2020. The gap of a parameter is the
    way from where its gradient was computed, w_old, to where the gradient is applied, w. It is counted in steps of the
    usual size, C:

        g'  =  g / (1 + |w - w_old| / C)
        C   =  sqrt(m / (1 - decay^k)),  m  <-  decay * m + (1 - decay) * step^2      after each of k updates

    All of it is element by element. Where nothing has moved, the gradient is applied as it is: one worker trains as
    under Downpour. The paper estimates the step from the learning rate and the momentum of SGD; here it is the step
    that the user's optimizer has made. Not to be confused with staleness-aware learning rates (Zhang et al., IJCAI
    2016), which count the updates in between, whether or not they have moved this parameter.
    """

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
