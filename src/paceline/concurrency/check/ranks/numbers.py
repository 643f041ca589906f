"""Operators and functions of whole numbers and lists of them, where a value may be unknown."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

OPERATORS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.BitXor: operator.xor, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b, ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}  # fmt: skip


class Unknown:
    """A value that is not followed."""


UNKNOWN = Unknown()


def applied(how: ast.AST, left: object, right: object) -> object:
    """What an operator makes of two values; unknown where one of them is."""
    function = OPERATORS.get(type(how))
    if function is None or left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    try:
        return function(left, right)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return UNKNOWN


def plain(name: str, arguments: list[object]) -> object:
    """What a function of Python returns for known values."""
    functions: dict[str, Callable[..., object]] = {
        "int": int,
        "abs": abs,
        "min": min,
        "max": max,
        "len": len,
        "sorted": sorted,
        "list": list,
        "range": lambda *bounds: list(range(*bounds)),
        "reversed": lambda many: list(reversed(many)),
    }
    try:
        return functions[name](*arguments)
    except (TypeError, ValueError):
        return UNKNOWN
