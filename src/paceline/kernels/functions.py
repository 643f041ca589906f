"""Functions of one number as rows: those that printers have a word for, with their slopes, and formulas of them.

A slope is given by the result where that is enough, so that only the result needs to be kept for the way back.
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


# Activations that are formulas of others, so that no printer needs a word for them: a row each.
#
# An activation's name holds its numbers: `leaky_relu:0.01` is LeakyReLU with that slope.


def _relu(x: Expression, shift: float = 0.0) -> Expression:
    return FunctionCall("relu", Op("-", x, Number(shift)) if shift else x)


def _clipped(x: Expression, low: float, high: float) -> Expression:
    return Op("+", Op("-", _relu(x, low), _relu(x, high)), Number(low))


def _leaky_relu(x: Expression, slope: float) -> Expression:
    return Op("+", Op("*", _relu(x), Number(1 - slope)), Op("*", x, Number(slope)))


def _elu(x: Expression, alpha: float) -> Expression:
    below = Op("-", FunctionCall("exp", Op("-", x, _relu(x))), Number(1.0))
    return Op("+", _relu(x), Op("*", below, Number(alpha)))


def _selu(x: Expression) -> Expression:
    return Op("*", _elu(x, 1.6732632423543772), Number(1.0507009873554805))


def _celu(x: Expression, alpha: float) -> Expression:
    below = Op("-", FunctionCall("exp", Op("*", Op("-", x, _relu(x)), Number(1 / alpha))), Number(1.0))
    return Op("+", _relu(x), Op("*", below, Number(alpha)))


def _hardsigmoid(x: Expression) -> Expression:
    return Op("*", Op("-", _relu(x, -3.0), _relu(x, 3.0)), Number(1 / 6))


def _abs(x: Expression) -> Expression:
    return Op("+", _relu(x), _relu(Op("*", x, Number(-1.0))))


def _softplus(x: Expression, beta: float = 1.0) -> Expression:
    scaled = x if beta == 1 else Op("*", x, Number(beta))
    tail = FunctionCall("log", Op("+", FunctionCall("exp", Op("*", _abs(scaled), Number(-1.0))), Number(1.0)))
    softplus = Op("+", _relu(scaled), tail)
    return softplus if beta == 1 else Op("*", softplus, Number(1 / beta))


def _log_sigmoid(x: Expression) -> Expression:
    return Op("*", _softplus(Op("*", x, Number(-1.0))), Number(-1.0))


def _threshold(x: Expression, threshold: float, value: float) -> Expression:
    above = FunctionCall("step", Op("-", x, Number(threshold)))
    return Op("+", Op("*", above, Op("-", x, Number(value))), Number(value))


def _beyond(x: Expression, size: float) -> Expression:
    """What is left of a number whose size is above the limit; nothing of the others."""
    return Op("*", x, FunctionCall("step", Op("-", _abs(x), Number(size))))


def _shrunk(x: Expression, size: float) -> Expression:
    return Op("-", _relu(x, size), _relu(Op("*", x, Number(-1.0)), size))


def power(x: Expression, exponent: float) -> Expression:
    """A power by a whole number as products, another one by logarithms."""
    if exponent < 0:
        return FunctionCall("reciprocal", power(x, -exponent))
    if exponent == 0.5:
        return FunctionCall("root", x)
    if exponent != int(exponent) or exponent > 16:
        return FunctionCall("exp", Op("*", FunctionCall("log", x), Number(exponent)))
    half = Number(1.0) if exponent < 2 else power(x, exponent // 2)
    square: Expression = half if exponent < 2 else Op("*", half, half)
    return square if exponent % 2 == 0 else x if exponent == 1 else Op("*", square, x)


FORMULAS: dict[str, Callable[..., Expression]] = {
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "hardtanh": _clipped,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: Op("*", x, _hardsigmoid(x)),
    "abs": _abs,
    "softplus": _softplus,
    "mish": lambda x: Op("*", x, FunctionCall("tanh", _softplus(x))),
    "log_sigmoid": _log_sigmoid,
    "softsign": lambda x: Op("*", x, FunctionCall("reciprocal", Op("+", Number(1.0), _abs(x)))),
    "tanhshrink": lambda x: Op("-", x, FunctionCall("tanh", x)),
    "softshrink": _shrunk,
    "hardshrink": _beyond,
    "threshold": _threshold,
}


def named(name: str, *numbers: float) -> str:
    """The name of an activation with these numbers."""
    return ":".join([name, *map(repr, map(float, numbers))])


def numbers_of(name: str) -> tuple[float, ...]:
    """The numbers in an activation's name."""
    return tuple(map(float, name.split(":")[1:]))


def is_formula(name: str) -> bool:
    """Whether an activation is a formula of others."""
    return name.partition(":")[0] in FORMULAS


def applied(name: str, x: Expression) -> Expression:
    """An activation of an expression."""
    word = name.partition(":")[0]
    return FORMULAS[word](x, *numbers_of(name)) if word in FORMULAS else FunctionCall(name, x)
