"""What a loop does to a value from one turn to the next."""

from __future__ import annotations

import ast

from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing, is_within, parent
from paceline.concurrency.check.varying.reasons import DATA


def changed_in_turn(node: ast.Name, target: ast.expr) -> bool:
    """Whether a loop asks for a name before each turn, which this assignment of the turn before has changed."""
    loop = enclosing(node, ast.While)
    in_test = isinstance(loop, ast.While) and loop.test.lineno <= node.lineno < loop.body[0].lineno
    return in_test and is_within(target, loop.body)  # type: ignore[union-attr]


def trained_on(node: ast.Name, loop: ast.AST) -> str:
    """Why an element of a loop differs: gradients are computed from each, and this one is taken apart or handed on."""
    inner = (n for n in ast.walk(loop) if isinstance(n, ast.Call) and short_name(n.func) == "backward")
    trains = any(enclosing(call, ast.For, ast.While) is loop for call in inner)
    used = isinstance(parent(node), ast.Attribute | ast.Subscript | ast.Call)
    over = loop.iter if isinstance(loop, ast.For) else None
    counted = isinstance(over, ast.Call) and short_name(over.func) == "range"
    return DATA if trains and used and over is not None and not counted else ""
