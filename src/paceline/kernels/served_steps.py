"""Optimizers and rules of servers as lines of arithmetic per number, rounded as PyTorch rounds them: a row each.

A version that generated code has made must have the bits that the user's own optimizer gives it, since another worker
may make the next one in Python, and a replay makes all of them there. So each line follows PyTorch's operations one by
one, `std::fma` where these add a product, and is compiled without any other contraction. What PyTorch makes of Python's
numbers before it begins (a bias correction, for example) is computed in double precision, as Python does.
`gradients.native_step` compares both before a row is used.

    w, g       the parameter, and its gradient
    r0, s0     the first thing remembered of it, in the newest version and in the next one; r1, s1 the second
    t          the number of this step, from 1
    present    whether anything is remembered yet
    root       PyTorch's square root of `root_of`, which only the lines of `then` know
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from paceline.kernels.optimizers import numbers

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class ServedStep:
    """An optimizer's step at a server, as text."""

    #: Numbers of a parameter group, by the optimizer's own words.
    settings: tuple[str, ...]
    #: What is remembered of a number, by torch's own names.
    states: tuple[str, ...] = ()
    #: Whether torch remembers the number of steps beside them.
    counts: bool = False
    #: What is remembered before the first step.
    start: str = "0"
    #: Done once for each parameter, in double precision.
    once: tuple[str, ...] = ()
    #: Done for each number; and, if there is a root to be taken, after that.
    each: tuple[str, ...] = ()
    root_of: str | None = None
    then: tuple[str, ...] = ()

    @property
    def remembered(self) -> set[str]:
        """The names of all that torch remembers of a parameter."""
        return {*self.states, *(["step"] if self.counts else [])}

    def row(self, group: dict[str, Any]) -> list[float]:
        """Return the settings of a parameter group, as they are now."""
        return numbers(group, self.settings, 0.0)


@dataclass(frozen=True)
class ServedRule:
    """What a server's rule makes of a gradient before the optimizer's step, as text.

    w, g, p    the newest value, the gradient, and the value that it was computed from
    m          what the rule remembers of it; changed by the lines
    root       PyTorch's square root of `root_of`, which only the lines of `then` know
    """

    #: Numbers that the lines read.
    settings: tuple[str, ...] = ()
    #: What the rule remembers, by its own name; None where nothing is.
    memory: str | None = None
    uses_pulled: bool = False
    #: Done for each number; and, if there is a root to be taken, after that.
    each: tuple[str, ...] = ()
    root_of: str | None = None
    then: tuple[str, ...] = ()


def served_step(optimizer: torch.optim.Optimizer) -> ServedStep | None:
    """Return the text of this optimizer's step; None where it has none, or not for these settings."""
    row, groups = STEPS.get(type(optimizer)), optimizer.param_groups
    if row is None or any(group.get(key) for group in groups for key in UNKNOWN):
        return None
    if form_of(optimizer) is None:
        return None
    return row(groups)


def form_of(optimizer: torch.optim.Optimizer) -> tuple[bool, ...] | None:
    """Return what decides which text a step has; None where its groups differ in that, or numbers are tensors."""
    groups = optimizer.param_groups
    forms = {tuple([bool(group.get(key)) for key in (*ALIKE, *UNKNOWN)]) for group in groups}
    tensors = any(isinstance(number, torch.Tensor) for group in groups for number in _numbers(group))
    return None if len(forms) > 1 or tensors else next(iter(forms), ())


def _numbers(group: dict[str, Any]) -> list[Any]:
    return [group.get("lr"), group.get("weight_decay"), *group.get("betas", ())]


#: Settings that no text knows, those by which texts differ, and all that a text reads.
UNKNOWN = ("maximize", "differentiable", "dampening", "fused", "foreach", "amsgrad", "capturable", "centered")
ALIKE = ("nesterov", "momentum", "weight_decay", "decoupled_weight_decay")
WATCHED = ("lr", "betas", "eps", "alpha", "lr_decay", "initial_accumulator_value")


def _decay(groups: Groups) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Settings, lines once and lines for each number of a weight decay that is added to the gradient."""
    if not groups[0]["weight_decay"]:
        return (), (), ()
    return ("weight_decay",), ("const R decay = R(weight_decay);",), ("g = std::fma(w, decay, g);",)


def _sgd(groups: Groups) -> ServedStep:
    settings, once, lines = _decay(groups)
    settings, once, last = ("lr", *settings), (*once, "const R pace = R(-lr);"), "w = std::fma(g, pace, w);"
    if not groups[0]["momentum"]:
        return ServedStep(settings, once=once, each=(*lines, last))
    lines = (*lines, "s0 = present ? r0 * keep + g : g;")
    lines = (*lines, "g = std::fma(s0, keep, g);" if groups[0]["nesterov"] else "g = s0;")
    once = (*once, "const R keep = R(momentum);")
    return ServedStep((*settings, "momentum"), ("momentum_buffer",), once=once, each=(*lines, last))


def _adagrad(groups: Groups) -> ServedStep:
    settings, once, lines = _decay(groups)
    once = (*once, "const R pace = R(-(lr / (1 + (t - 1) * lr_decay))), tiny = R(eps);")
    return ServedStep(
        ("lr", *settings, "lr_decay", "eps", "initial_accumulator_value"),
        ("sum",),
        True,
        "initial_accumulator_value",
        once,
        (*lines, "s0 = std::fma(g, g, r0);"),
        "s0",
        ("w = w + pace * g / (root + tiny);",),
    )


def _rmsprop(groups: Groups) -> ServedStep:
    settings, once, lines = _decay(groups)
    settings = ("lr", *settings, "alpha", "eps")
    once = (*once, "const R pace = R(-lr), keep = R(alpha), fresh = R(1 - alpha), tiny = R(eps);")
    lines = (*lines, "s0 = std::fma(fresh * g, g, r0 * keep);")
    if not groups[0]["momentum"]:
        then = ("w = w + pace * g / (root + tiny);",)
        return ServedStep(settings, ("square_avg",), True, "0", once, lines, "s0", then)
    once, settings = (*once, "const R drag = R(momentum);"), (*settings, "momentum")
    dragged = ("s1 = r1 * drag + g / (root + tiny);", "w = std::fma(s1, pace, w);")
    return ServedStep(settings, ("square_avg", "momentum_buffer"), True, "0", once, lines, "s0", dragged)


def _adam(groups: Groups) -> ServedStep:
    settings, once, lines = _decay(groups)
    then = ["w = w + pace * s0 / (root / second + tiny);"]
    if settings and groups[0].get("decoupled_weight_decay"):
        once, lines = ("const R decay = R(1 - lr * weight_decay);",), ()
        then.insert(0, "w = w * decay;")
    once += (
        "const R share = R(1 - beta1), keep = R(beta2), fresh = R(1 - beta2), tiny = R(eps);",
        "const R pace = R(-(lr / (1 - std::pow(beta1, t)))), second = R(std::pow(1 - std::pow(beta2, t), 0.5));",
    )
    lines += (
        "s0 = share < R(0.5) ? std::fma(share, g - r0, r0) : std::fma(share - R(1), g - r0, g);",
        "s1 = std::fma(fresh * g, g, r1 * keep);",
    )
    return ServedStep(
        ("lr", *settings, "beta1", "beta2", "eps"),
        ("exp_avg", "exp_avg_sq"),
        True,
        "0",
        once,
        lines,
        "s1",
        tuple(then),
    )


STEPS: dict[type[torch.optim.Optimizer], Callable[[Groups], ServedStep]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
}
