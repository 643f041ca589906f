"""What becomes of a value: whether anything ever reads it, through names, lists, attributes and returns."""

from __future__ import annotations

import ast

from paceline.check.summaries import Facts
from paceline.check.syntax.declarations import Function
from paceline.check.syntax.names import dotted
from paceline.check.syntax.tree import parent

ADDS = ("append", "add", "appendleft", "extend", "insert")
DEPTH = 6  # names, lists and calls through which a value is followed


def is_dropped(node: ast.AST, fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether nothing in the file ever reads what an expression returns."""
    up = parent(node)
    if isinstance(up, ast.Expr):
        return True
    if depth > DEPTH:
        return False
    if isinstance(up, ast.List | ast.Tuple | ast.Set | ast.ListComp | ast.IfExp):
        asked = isinstance(up, ast.IfExp) and up.test is node
        return not asked and is_dropped(up, fn, facts, depth + 1)
    if isinstance(up, ast.Assign) and up.value is node:
        return all(_is_unread(target, fn, facts, depth + 1) for target in up.targets)
    if isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.attr in ADDS and node in up.args:
        return _is_unread(up.func.value, fn, facts, depth + 1)
    if isinstance(up, ast.Return):
        sites = facts.callers.get(id(fn), ())
        return bool(sites) and all(is_dropped(event.effect.node, caller, facts, depth + 1) for caller, event in sites)
    return False


def _is_unread(target: ast.AST, fn: Function, facts: Facts, depth: int) -> bool:
    """Whether what a name or an attribute of the own object holds is never read."""
    if isinstance(target, ast.Name):
        if target.id in fn.globals or target.id in fn.nonlocals or fn is facts.module.top:
            return False
        inner = [f for f in facts.module.functions if fn in f.scopes()]
        if target.id in fn.parameters:
            return False
        reads: list[tuple[ast.AST, Function]] = [(n, f) for f in inner for n in f.names if n.id == target.id]
    elif isinstance(target, ast.Attribute) and fn.self_name and dotted(target.value) == fn.self_name:
        reads = [(n, f) for f in facts.module.functions for n in f.attributes if n.attr == target.attr]
    else:
        return False
    loads = [(n, f) for n, f in reads if isinstance(n.ctx, ast.Load)]  # type: ignore[attr-defined]
    return all(_is_filled(n) or is_dropped(n, f, facts, depth) for n, f in loads)


def _is_filled(node: ast.AST) -> bool:
    """Whether this only adds to a container."""
    up = parent(node)
    return isinstance(up, ast.Attribute) and up.attr in ADDS and isinstance(parent(up), ast.Call)
