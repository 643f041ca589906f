"""Functions of one number, and their slopes: a row each. A slope is given by the result where that is enough, so that
only the result needs to be kept for the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline.kernels.ir import Expression, FunctionCall, Number, Op

ONE = Number(1.0)
FLAT = Number(0.0)  # the slope of what does not change with its argument but for jumps


@dataclass(frozen=True)
class Function:
    """A function of one number."""

    slope: Callable[[Expression, Expression], Expression]  # of (argument, result)
    flops: int = 1


FUNCTIONS: dict[str, Function] = {
    "sigmoid": Function(lambda x, y: Op("*", y, Op("-", ONE, y)), 12),
    "tanh": Function(lambda x, y: Op("-", ONE, Op("*", y, y)), 14),
    "relu": Function(lambda x, y: FunctionCall("step", y), 1),
    "step": Function(lambda x, y: FLAT, 1),
    "gelu": Function(lambda x, y: FunctionCall("gelu_slope", x), 20),
    "gelu_tanh": Function(lambda x, y: FunctionCall("gelu_tanh_slope", x), 20),
    "silu": Function(lambda x, y: FunctionCall("silu_slope", x), 14),
    "exp": Function(lambda x, y: y, 10),
    "log": Function(lambda x, y: FunctionCall("reciprocal", x), 10),
    "root": Function(lambda x, y: Op("*", Number(0.5), FunctionCall("reciprocal", y)), 4),
    "sin": Function(lambda x, y: FunctionCall("cos", x), 10),
    "cos": Function(lambda x, y: Op("*", Number(-1.0), FunctionCall("sin", x)), 10),
    "reciprocal": Function(lambda x, y: Op("*", Number(-1.0), Op("*", y, y)), 2),
    "reciprocal_root": Function(lambda x, y: Op("*", Number(-0.5), Op("*", y, Op("*", y, y))), 2),
}


def functions_of(expression: Expression) -> Iterator[str]:
    """The functions that an expression calls."""
    match expression:
        case Op(_, left, right):
            yield from functions_of(left)
            yield from functions_of(right)
        case FunctionCall(function, argument):
            yield function
            yield from functions_of(argument)


def partials(value: Expression, result: Expression, seed: Expression) -> list[tuple[Expression, Expression]]:
    """(leaf, the gradient that it gets) for each leaf of an expression whose result gets the gradient `seed`."""
    match value:
        case Op("+", left, right):
            return [*partials(left, left, seed), *partials(right, right, seed)]
        case Op("-", left, right):
            return [*partials(left, left, seed), *partials(right, right, Op("*", Number(-1.0), seed))]
        case Op("*", left, right):
            return [*partials(left, left, Op("*", seed, right)), *partials(right, right, Op("*", seed, left))]
        case FunctionCall(function, argument):
            slope = FUNCTIONS[function].slope(argument, result)
            if slope == FLAT:
                return []
            return partials(argument, argument, Op("*", seed, slope))
        case Number():
            return []
    return [(value, seed)]
