"""The arithmetic of an update in one pass over memory: a rule, the optimizer's step, and where the new values go.

    newest values ─────┐
    gradient ──────────┼─▶ the rule's lines ─▶ the optimizer's lines ─▶ new values, and what is remembered of them
    what is remembered ┘

PyTorch makes the same operations one tensor after another, and each is a pass of its own. The lines are those of
`served_steps`, rounded as PyTorch rounds them; both are compared before a pass is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from paceline.kernels.build import CannotCompile, NoCompiler, library
from paceline.kernels.optimizers import numbers
from paceline.kernels.printers.cpp import part
from paceline.kernels.weights import REALS

# PyTorch's square root, which generated code calls where a step has to have PyTorch's bits.
#
# Where PyTorch was built with Intel's vector mathematics, its root of float32 and float64 is a function of that
# library. On some processors this differs from the correctly rounded root in the last bit.

NAMES = {torch.float32: "vmsSqrt", torch.float64: "vmdSqrt"}


@cache
def address_of_root(dtype: torch.dtype) -> int:
    """Return the address of the function; 0 where PyTorch has none, and rounds correctly."""
    for file in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.so*"):
        if (function := getattr(ctypes.CDLL(str(file)), NAMES[dtype], None)) is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def use_torchs_roots(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Let a library with the text of a step take roots as PyTorch does."""
    library.paceline_roots.argtypes, library.paceline_roots.restype = [ctypes.c_void_p], None
    library.paceline_roots(address_of_root(dtype) or None)


#: A parameter, as `Numbers` of `printers/step.hpp` has it: addresses, and how many numbers lie where.
SPAN = np.dtype(
    [
        ("old", "<i8"),
        ("fresh", "<i8"),
        ("remembered", "<i8", 2),
        ("kept", "<i8", 2),
        *(
            (name, "<i8")
            for name in (
                "counted",
                "counting",
                "noted",
                "noting",
                "gradient",
                "pulled",
                "own",
                "rows",
                "width",
                "stride",
                "group",
                "present",
                "shared",
            )
        ),
    ]
)
#: What PyTorch rounds twice is not contracted.
FLAGS = ("-ffp-contract=off",)

#: Called with the addresses of settings and spans, and how many spans: to ask an array for its address takes long.
Pass = Callable[[int, int, int], None]

HEAD = "#include <cmath>\n#include <cstdint>\n#include <cstring>"
ALL = """
extern "C" void paceline_one_pass(const double* settings, const Numbers* numbers, int64_t count) {
    for (const Numbers* n = numbers; n < numbers + count; n++) step(settings + n->group * SETTINGS, R(1), *n);
}
"""


@cache
def one_pass(dtype: torch.dtype, step: ServedStep, rule: ServedRule) -> Pass | None:
    """Return the pass; None without a compiler, or for numbers that it does not know."""
    if dtype not in REALS:
        return None
    try:
        functions = library(f"{HEAD}\ntypedef {REALS[dtype]} R;\n{step_text(step, rule)}{ALL}", FLAGS)[0]
    except (NoCompiler, CannotCompile):
        return None
    use_torchs_roots(functions, dtype)
    run: Pass = functions.paceline_one_pass
    functions.paceline_one_pass.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    functions.paceline_one_pass.restype = None
    return run


def spans_for(counts: list[int]) -> np.ndarray:
    """Return spans of so many numbers each, which lie side by side."""
    spans = np.zeros(len(counts), SPAN)
    spans["rows"], spans["width"], spans["stride"] = 1, counts, counts
    return spans


# Optimizers and rules of servers as lines of arithmetic per number, rounded as PyTorch rounds them: a row each.
#
# A version that generated code has made must have the bits that the user's own optimizer gives it, since another
# worker may make the next one in Python, and a replay makes all of them there. So each line follows PyTorch's
# operations one by one, `std::fma` where these add a product, and is compiled without any other contraction. What
# PyTorch makes of Python's numbers before it begins (a bias correction, for example) is computed in double precision,
# as Python does. `gradients.native_step` compares both before a row is used.
#
#     w, g       the parameter, and its gradient
#     r0, s0     the first thing remembered of it, in the newest version and in the next one; r1, s1 the second
#     t          the number of this step, from 1
#     present    whether anything is remembered yet
#     root       PyTorch's square root of `root_of`, which only the lines of `then` know

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


# The function that makes a step: a rule's lines, then the optimizer's, in passes over a block between roots.
#
#     gradient ──▶ lines up to a root ──▶ all roots of the block, by PyTorch's own function ──▶ lines after it ──▶ ...
#
# Only the last pass writes new values, so all of them may lie where the old ones do.


class StorePlace(NamedTuple):
    """Where new numbers go: at once, or a block at a time where other cores read them."""

    name: str
    at: str


class StepPass(NamedTuple):
    """Lines for each number, and whose root is taken after them."""

    lines: tuple[str, ...]
    root_of: str | None = None


def step_text(step: ServedStep, rule: ServedRule) -> str:
    """The C++ of `step(settings, scale, numbers)`, where gradients are multiplied by `scale` first."""
    names = [*(f"    const double {name} = settings[{n}];" for n, name in enumerate(step.settings))]
    names += [f"    const R {name} = R(settings[{len(step.settings) + n}]);" for n, name in enumerate(rule.settings)]
    places = [
        StorePlace("new_values", "n.fresh"),
        *(StorePlace(f"new_state{k}", f"n.kept[{k}]") for k in range(len(step.states))),
        *([StorePlace("new_memory", "n.noting")] if rule.memory is not None else []),
    ]
    return "\n".join(
        [
            f"#define SETTINGS {len(step.settings) + len(rule.settings)}",
            f"#define REMEMBERS {int(bool(step.remembered))}",
            f"#define STATES {len(step.states)}",
            part("rows"),
            part("stream"),
            part("step"),
            "static void step(const double* settings, R scale, const Numbers& n) {",
            *names,
            "    const bool present = n.present;",
            f"    const double t = {'present ? *n.counted + 1.0f : 1.0f' if step.counts else '0'};",
            "    (void)settings, (void)present, (void)t;",
            *(f"    {line}" for line in step.once),
            "    R bent[BLOCK], roots[BLOCK], from_here[BLOCK];",
            f"    R {', '.join(f'{place.name}_block[BLOCK]' for place in places)};",
            "    for (int64_t from = 0; from < n.rows * n.width; from += BLOCK) {",
            "        const int64_t left = n.rows * n.width - from, size = left < BLOCK ? left : BLOCK;",
            "        (void)roots, (void)from_here;",
            *(f"        R* const {p.name} = n.shared ? {p.name}_block : {p.at} + from;" for p in places),
            "        gather(n, n.gradient, scale, from, size, bent);",
            *(["        gather(n, n.pulled, R(1), from, size, from_here);"] if rule.uses_pulled else []),
            *(f"        {line}" for line in _passes(step, rule)),
            "        if (n.own) scatter(n, new_values, from, size);",
            *(f"        if (n.shared) stream({p.at} + from, {p.name}, size);" for p in places),
            "    }",
            *(["    *n.counting = (float)t;"] if step.counts else []),
            "}",
            "",
        ]
    )


def _passes(step: ServedStep, rule: ServedRule) -> Iterator[str]:
    """The loops over a block."""
    passes = [StepPass(rule.each, rule.root_of), StepPass(rule.then)] if rule.root_of else [StepPass(rule.each)]
    passes[-1] = StepPass((*passes[-1].lines, *step.each), step.root_of)
    if step.root_of:
        passes.append(StepPass(step.then))
    for number, each in enumerate(passes):
        yield "EACH"
        yield "for (int64_t q = 0; q < size; q++) {"
        yield "    R w = n.old[from + q], g = bent[q];"
        if rule.uses_pulled:
            yield "    const R p = from_here[q];"
        if number:
            yield "    const R root = roots[q];"
        earlier = [line for before in passes[:number] for line in before.lines]
        yield from (f"    {line}" for line in _remembered(step, rule, earlier, each.lines))
        if each.root_of is not None:
            yield f"    roots[q] = {each.root_of};"
            yield "    bent[q] = g;"
        else:
            yield "    new_values[q] = w;"
        yield "}"
        if each.root_of is not None:
            yield "take_roots(roots, size);"


def _remembered(step: ServedStep, rule: ServedRule, earlier: Sequence[str], lines: Sequence[str]) -> Iterator[str]:
    """The lines of a pass between what they read of things remembered and what they write there."""
    states = [(f"r{n}", f"s{n}", f"n.remembered[{n}]", f"new_state{n}", step.start) for n in range(len(step.states))]
    written = []
    for before, after, old, new, start in states:
        if _sets(after, lines):
            yield f"const R {before} = present ? {old}[from + q] : R({start});"
            yield f"R {after};"
            yield f"(void){before};"
            written.append(f"{new}[q] = {after};")
        elif _sets(after, earlier):
            yield f"const R {after} = {new}[q];"
    if rule.memory is not None:
        yield f"R m = {'new_memory[q]' if _sets('m', earlier) else 'n.noted[from + q]'};"
        if _sets("m", lines):
            written.append("new_memory[q] = m;")
    yield from (*lines, *written)


def _sets(name: str, lines: Sequence[str]) -> bool:
    return any(line.startswith(f"{name} = ") for line in lines)
