"""Optimizers as a line of arithmetic per weight: a row each. The numbers are read from the user's own torch optimizer
before every call, so that the user's schedule goes on working; which terms there are is part of the text.

    w, g     the weight, and the batch's gradient of it
    s[0..]   what is remembered of it, zeros at first
    t        the number of this update, from 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from paceline.kernels.layers.base import CannotFuse


@dataclass(frozen=True)
class Segment:
    """Weights that are updated alike."""

    start: int
    stop: int
    group: int


@dataclass(frozen=True)
class Rule:
    """An optimizer as text."""

    settings: tuple[str, ...] = ()  # numbers of a parameter group, by the optimizer's own words
    states: tuple[str, ...] = ()  # what is remembered of a weight, by torch's own names
    counts: bool = False  # whether torch remembers the number of steps beside them
    once: tuple[str, ...] = ()  # done once per update
    each: tuple[str, ...] = ()  # done for each weight
    segments: tuple[Segment, ...] = ()

    def lines(self) -> Iterator[str]:
        """The function that makes the step for a range of weights."""
        yield "FUNCTION void apply_rule(const Call& c, const double* settings, int64_t from, int64_t to, int64_t t) {"
        yield f"    static const int64_t segments[][3] = {{{', '.join(self._segments()) or '{0, 0, 0}'}}};"
        yield "    (void)t, (void)settings;"
        yield "    for (const auto& part : segments) {"
        yield "        const int64_t begin = part[0] > from ? part[0] : from, end = part[1] < to ? part[1] : to;"
        yield "        if (begin >= end) continue;"
        for number, name in enumerate(self.settings):
            yield f"        const W {name} = setting(settings, part[2], {number});"
        for line in self.once:
            yield f"        {line}"
        yield "        W* __restrict weights = c.weights;"
        yield "        const W* __restrict gradients = c.gradients;"
        for number in range(len(self.states)):
            yield f"        W* __restrict s{number} = c.state + (int64_t){number} * NUMBERS;"
        yield "        for (int64_t q = begin; q < end; q++) {"
        yield "            W w = weights[q], g = gradients[q];"
        for line in self.each:
            yield f"            {line}"
        yield "            weights[q] = w;"
        yield "        }"
        yield "    }"
        yield "}"

    def _segments(self) -> list[str]:
        return [f"{{{s.start}, {s.stop}, {s.group}}}" for s in self.segments]


def rule_of(optimizer: torch.optim.Optimizer, l1: float) -> Rule:
    """The row of this optimizer, with the terms that its settings ask for."""
    return rule_of_groups(type(optimizer), optimizer.param_groups, l1)


def rule_of_groups(kind: type[torch.optim.Optimizer], groups: list[dict[str, Any]], l1: float) -> Rule:
    """The row of an optimizer, with the terms that any of these parameter groups asks for."""
    row = OPTIMIZERS.get(kind)
    if row is None:
        raise CannotFuse(
            f"optimizer {kind.__name__} has no kernel; there are {', '.join(k.__name__ for k in OPTIMIZERS)}; "
            "compute='autograd' takes any"
        )
    for key in ("maximize", "amsgrad", "centered", "differentiable", "dampening"):
        if any(group.get(key) for group in groups):
            raise CannotFuse(f"optimizer {kind.__name__} with {key}={groups[0].get(key)!r} has no kernel")
    for key in ("nesterov", "decoupled_weight_decay"):
        if len({bool(group.get(key)) for group in groups}) > 1:
            raise CannotFuse(f"optimizer {kind.__name__}: {key} differs between parameter groups; make it one")
    return row(groups, l1)


def _decay(groups: list[dict[str, Any]], l1: float) -> tuple[list[str], list[str]]:
    """Weight decay and L1, where they are asked for."""
    settings, lines = ["lr"], []
    if any(group.get("weight_decay") for group in groups):
        settings.append("weight_decay")
        lines.append("g += weight_decay * w;")
    if l1:
        settings.append("l1")
        lines.append("g += l1 * sign(w);")
    return settings, lines


def _sgd(groups: list[dict[str, Any]], l1: float) -> Rule:
    settings, lines = _decay(groups, l1)
    if not any(group["momentum"] for group in groups):
        return Rule(tuple(settings), each=(*lines, "w -= lr * g;"))
    lines.append("s0[q] = momentum * s0[q] + g;")
    step = "g + momentum * s0[q]" if groups[0]["nesterov"] else "s0[q]"
    return Rule((*settings, "momentum"), ("momentum_buffer",), each=(*lines, f"w -= lr * ({step});"))


def _adagrad(groups: list[dict[str, Any]], l1: float) -> Rule:
    settings, lines = _decay(groups, l1)
    once = ("const W pace = lr / (W{} + R(1) + R(t - 1) * lr_decay);",)
    lines += ["s0[q] += g * g;", "w -= pace * g / (root(s0[q]) + eps);"]
    return Rule((*settings, "lr_decay", "eps"), ("sum",), True, once, tuple(lines))


def _rmsprop(groups: list[dict[str, Any]], l1: float) -> Rule:
    settings, lines = _decay(groups, l1)
    settings += ["alpha", "eps"]
    lines += ["s0[q] = alpha * s0[q] + (R(1) - alpha) * g * g;", "g = g / (root(s0[q]) + eps);"]
    if not any(group["momentum"] for group in groups):
        return Rule(tuple(settings), ("square_avg",), True, each=(*lines, "w -= lr * g;"))
    lines += ["s1[q] = momentum * s1[q] + g;", "w -= lr * s1[q];"]
    return Rule((*settings, "momentum"), ("square_avg", "momentum_buffer"), True, each=tuple(lines))


def _adam(groups: list[dict[str, Any]], l1: float) -> Rule:
    decoupled = bool(groups[0].get("decoupled_weight_decay"))
    settings, lines = _decay(groups, l1)
    if decoupled and "weight_decay" in settings:
        lines[0] = "w -= lr * weight_decay * w;"
    once = (
        "const W first = R(1) - power(beta1, t), second = root(R(1) - power(beta2, t));",
        "const W pace = lr / first;",
    )
    lines += [
        "s0[q] = beta1 * s0[q] + (R(1) - beta1) * g;",
        "s1[q] = beta2 * s1[q] + (R(1) - beta2) * g * g;",
        "w -= pace * s0[q] / (root(s1[q]) / second + eps);",
    ]
    return Rule((*settings, "beta1", "beta2", "eps"), ("exp_avg", "exp_avg_sq"), True, once, tuple(lines))


OPTIMIZERS: dict[type[torch.optim.Optimizer], Callable[[list[dict[str, Any]], float], Rule]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
}


def numbers(group: dict[str, Any], settings: tuple[str, ...], l1: float) -> list[float]:
    """The settings of a parameter group, as they are now."""
    hyperparameters = {**group, "l1": l1}
    if "betas" in group:
        hyperparameters["beta1"], hyperparameters["beta2"] = group["betas"]
    return [float(hyperparameters[name]) for name in settings]
