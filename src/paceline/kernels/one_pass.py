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
from pathlib import Path

import numpy as np
import torch

from paceline.kernels.build import CannotCompile, NoCompiler, library
from paceline.kernels.printers.step import step_text
from paceline.kernels.served_steps import ServedRule, ServedStep
from paceline.kernels.weights import REALS

# --- PyTorch's square root, which generated code calls where a step has to have PyTorch's bits ------------------------
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
SPAN = np.dtype([
    ("old", "<i8"), ("fresh", "<i8"), ("remembered", "<i8", 2), ("kept", "<i8", 2),
    *((name, "<i8") for name in (
        "counted", "counting", "noted", "noting", "gradient", "pulled", "own", "rows", "width", "stride", "group",
        "present", "shared",
    )),
])  # fmt: skip
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
