"""The arithmetic of an update in one pass over memory: a rule, the optimizer's step, and where the new values go.

    newest values ─────┐
    gradient ──────────┼─▶ the rule's lines ─▶ the optimizer's lines ─▶ new values, and what is remembered of them
    what is remembered ┘

PyTorch makes the same operations one tensor after another, and each is a pass of its own. The lines are those of
`served_steps`, rounded as PyTorch rounds them; both are compared before a pass is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from paceline.kernels.build import CannotCompile, NoCompiler, library
from paceline.kernels.served_steps import ServedRule, ServedStep
from paceline.kernels.weights import REALS

#: A parameter: addresses of the newest values and of the new ones, of what the optimizer and the rule remember of both,
#: of the gradient and of the values that it was computed from.
SPAN = np.dtype([
    (name, "<i8") for name in (
        "old", "fresh", "remembered", "kept", "noted", "noting", "gradient", "pulled", "count", "group", "present",
    )
])  # fmt: skip

Pass = Callable[[np.ndarray, np.ndarray], None]

HEAD = """
#include <cmath>
#include <cstdint>
struct Span {
    const R* old; R* fresh; const R* remembered; R* kept; const R* noted; R* noting; const R *gradient, *pulled;
    int64_t count, group, present;
};
#ifdef __clang__
#define EACH _Pragma("clang loop vectorize(assume_safety)")
#else
#define EACH _Pragma("GCC ivdep")
#endif
"""


def text(dtype: torch.dtype, step: ServedStep, rule: ServedRule) -> str:
    """The C++ of a pass. New values may lie where the old ones do, number by number."""
    settings = [f"    const R {name} = R(settings[{n}]);" for n, name in enumerate((*step.settings, *rule.settings))]
    read, write = ["R w = span.old[q], g = span.gradient[q];"], ["span.fresh[q] = w;"]
    if step.state is not None:
        read, write = [*read, "const R r = span.remembered[q];", "R s;"], [*write, "span.kept[q] = s;"]
    if rule.looks_back:
        read.append("const R p = span.pulled[q];")
    if rule.memory is not None:
        read, write = [*read, "R m = span.noted[q];"], [*write, "span.noting[q] = m;"]
    return "\n".join([
        f"typedef {REALS[dtype]} R;", HEAD,
        "static void one(const double* settings, const Span& span) {", *settings,
        "    const bool present = span.present;", "    (void)settings, (void)present;", "    EACH",
        "    for (int64_t q = 0; q < span.count; q++) {",
        *(f"        {line}" for line in (*read, *rule.each, *step.each, *write)), "    }", "}",
        'extern "C" void paceline_one_pass(const double* settings, const Span* spans, int64_t count) {',
        "    for (const Span* span = spans; span < spans + count; span++)",
        f"        one(settings + span->group * {len(step.settings) + len(rule.settings)}, *span);", "}", "",
    ])  # fmt: skip


@cache
def one_pass(dtype: torch.dtype, step: ServedStep, rule: ServedRule) -> Pass | None:
    """Return the pass over settings and spans; None without a compiler, or for numbers that it does not know."""
    if dtype not in REALS:
        return None
    try:
        # Nothing is contracted that PyTorch rounds twice.
        run = library(text(dtype, step, rule), ("-ffp-contract=off",))[0].paceline_one_pass
    except (NoCompiler, CannotCompile):
        return None
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return lambda settings, spans: run(settings.ctypes.data, spans.ctypes.data, len(spans))
