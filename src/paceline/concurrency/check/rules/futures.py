"""Futures of an event loop: where they are made, and from which attribute of an object one is taken."""

from __future__ import annotations

import ast

from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name

TAKES = ("pop", "get", "popleft")


def parts(value: ast.expr) -> list[ast.expr]:
    """The elements of a tuple, or the value alone."""
    return value.elts if isinstance(value, ast.Tuple) else [value]


def attribute_of(node: ast.expr, fn: Function) -> str:
    """The attribute of the own object that an expression or a local name takes its value from."""
    if isinstance(node, ast.Name):
        value = fn.bound.get(node.id) or fn.looped.get(node.id) or _unpacked(node.id, fn)
        return attribute_of(value, fn) if value is not None and not isinstance(value, ast.Name) else ""
    if isinstance(node, ast.Call) and short_name(node.func) in ("next", "iter", "list", "tuple") and node.args:
        return attribute_of(node.args[0], fn)
    while not isinstance(node, ast.Attribute) or dotted(node.value) != fn.self_name:
        inner = node.func if isinstance(node, ast.Call) else getattr(node, "value", None)
        unknown = isinstance(node, ast.Call) and short_name(inner or node) not in (*TAKES, "values")
        if not isinstance(inner, ast.expr) or unknown:
            return ""
        node = inner
    return node.attr


def _unpacked(name: str, fn: Function) -> ast.expr | None:
    """The tuple that a name is unpacked from: `sent, future = self.pending`."""
    for target, value in fn.assigns:
        if isinstance(target, ast.Tuple) and any(dotted(part) == name for part in target.elts):
            return value if isinstance(value, ast.Attribute) else None
    return None


def makes_future(value: ast.expr | None) -> bool:
    """Whether this makes a future of a loop."""
    return isinstance(value, ast.Call) and short_name(value.func) in ("create_future", "Future")
