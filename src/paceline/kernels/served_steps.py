"""Optimizers at a server as a line of arithmetic per number, rounded exactly as PyTorch rounds it: a row each.

A version that generated code has made must have the bits that the user's own optimizer gives it, since another worker
may make the next one in Python, and a replay makes all of them there. So each line follows PyTorch's operations one by
one, `std::fma` where these add a product, and is compiled without any other contraction. `kernels.serve` compares both
before it is used. Adam has no row: on some processors PyTorch's roots differ from the correctly rounded ones.

    w, g       the parameter, and its gradient
    r, s       what is remembered of it, in the newest version and in the next one
    present    whether anything is remembered yet
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class ServedStep:
    """An optimizer's step at a server, as text."""

    #: Numbers of a parameter group, by the optimizer's own words.
    settings: tuple[str, ...]
    #: What is remembered of a number, by torch's own name; None where nothing is.
    state: str | None
    #: Done for each number.
    each: tuple[str, ...]

    def lines(self, in_place: bool) -> Iterator[str]:
        """The function that makes the step for the rows of one parameter.

        in_place    whether the new values replace the old ones, which have no place of their own
        """
        yield f"#define SETTINGS {len(self.settings)}"
        yield f"#define REMEMBERS {int(self.state is not None)}"
        yield "static void step("
        yield "    const double* settings, bool present,"
        if not in_place:
            yield "    const R* __restrict old, const R* __restrict remembered,"
        yield "    R* __restrict fresh, R* __restrict kept, const R* __restrict gradients, R* __restrict own,"
        yield "    int64_t rows, int64_t width, int64_t stride"
        yield ") {"
        if in_place:
            yield "    const R *old = fresh, *remembered = kept;"
        yield "    (void)present, (void)remembered, (void)kept;"
        for number, name in enumerate(self.settings):
            yield f"    const R {name} = R(settings[{number}]);"
        yield "    for (int64_t row = 0; row < rows; row++)"
        yield "        for (int64_t q = 0; q < width; q++) {"
        yield "            const int64_t at = row * width + q, padded = row * stride + q;"
        yield "            R w = old[at], g = gradients[padded];"
        if self.state is not None:
            yield "            const R r = remembered[at];"
            yield "            R s;"
        yield from (f"            {line}" for line in self.each)
        if self.state is not None:
            yield "            kept[at] = s;"
        yield "            fresh[at] = own[padded] = w;"
        yield "        }"
        yield "}"

    def row(self, group: dict[str, Any]) -> list[float]:
        """Return the settings of a parameter group, as they are now."""
        return [float(group[name]) for name in self.settings]


@dataclass(frozen=True)
class ServedRule:
    """What a server's rule makes of a gradient before the optimizer's step, as text.

    w, g, p    the newest value, the gradient, and the value that it was computed from
    m          what the rule remembers of it; changed by the lines
    """

    #: Numbers that the lines read.
    settings: tuple[str, ...] = ()
    #: What the rule remembers, by its own name; None where nothing is.
    memory: str | None = None
    looks_back: bool = False
    #: Done for each number.
    each: tuple[str, ...] = ()


def served_step(optimizer: torch.optim.Optimizer) -> ServedStep | None:
    """Return the text of this optimizer's step; None where it has none, or not for these settings."""
    row, groups = STEPS.get(type(optimizer)), optimizer.param_groups
    if row is None or any(group.get(key) for group in groups for key in UNKNOWN):
        return None
    if any(isinstance(group["lr"], torch.Tensor) for group in groups):
        return None
    if any(len({bool(group.get(key)) for group in groups}) > 1 for key in ALIKE):
        return None
    return row(groups)


#: Settings that no text knows, and those by which texts differ.
UNKNOWN = ("maximize", "differentiable", "dampening", "fused", "foreach")
ALIKE = ("nesterov", "momentum", "weight_decay")


def _sgd(groups: Groups) -> ServedStep:
    settings, lines = ["lr"], []
    if groups[0]["weight_decay"]:
        settings.append("weight_decay")
        lines.append("g = std::fma(w, weight_decay, g);")
    if not groups[0]["momentum"]:
        return ServedStep(tuple(settings), None, (*lines, "w = std::fma(g, -lr, w);"))
    lines.append("s = present ? r * momentum + g : g;")
    lines.append("g = std::fma(s, momentum, g);" if groups[0]["nesterov"] else "g = s;")
    return ServedStep((*settings, "momentum"), "momentum_buffer", (*lines, "w = std::fma(g, -lr, w);"))


STEPS: dict[type[torch.optim.Optimizer], Callable[[Groups], ServedStep]] = {torch.optim.SGD: _sgd}
