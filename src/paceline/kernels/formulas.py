"""Activations that are formulas of others, so that no printer needs a word for them: a row each.

An activation's name holds its numbers: `leaky_relu:0.01` is LeakyReLU with that slope.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.kernels.ir import Call, Expression, Number, Op


def _relu(x: Expression, shift: float = 0.0) -> Expression:
    return Call("relu", Op("-", x, Number(shift)) if shift else x)


def _clipped(x: Expression, low: float, high: float) -> Expression:
    return Op("+", Op("-", _relu(x, low), _relu(x, high)), Number(low))


def _leaky_relu(x: Expression, slope: float) -> Expression:
    return Op("+", Op("*", _relu(x), Number(1 - slope)), Op("*", x, Number(slope)))


def _elu(x: Expression, alpha: float) -> Expression:
    below = Op("-", Call("exp", Op("-", x, _relu(x))), Number(1.0))
    return Op("+", _relu(x), Op("*", below, Number(alpha)))


def _selu(x: Expression) -> Expression:
    return Op("*", _elu(x, 1.6732632423543772), Number(1.0507009873554805))


def _celu(x: Expression, alpha: float) -> Expression:
    below = Op("-", Call("exp", Op("*", Op("-", x, _relu(x)), Number(1 / alpha))), Number(1.0))
    return Op("+", _relu(x), Op("*", below, Number(alpha)))


def _hardsigmoid(x: Expression) -> Expression:
    return Op("*", Op("-", _relu(x, -3.0), _relu(x, 3.0)), Number(1 / 6))


FORMULAS: dict[str, Callable[..., Expression]] = {
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "hardtanh": _clipped,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: Op("*", x, _hardsigmoid(x)),
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
    return FORMULAS[word](x, *numbers_of(name)) if word in FORMULAS else Call(name, x)
