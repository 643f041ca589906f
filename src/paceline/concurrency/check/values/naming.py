"""The name of an object by where it is made: `Pool._lock`, `LOCK`, `run.lock`, and `forks[]` for one of several."""

from __future__ import annotations

import ast
from typing import NamedTuple

from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import parent
from paceline.concurrency.check.values.sources import FILLS, slot_of

_ALIKE = (ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.Await, ast.keyword)
_HOLDING = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class SiteName(NamedTuple):
    """The name of what an expression makes."""

    id: str
    several: bool  # it makes one of several under this name


def name_of_site(node: ast.expr, fn: Function) -> SiteName:
    """The name of the variable, attribute or container into which a function puts what an expression makes."""
    at: ast.AST = node
    several, suffix = False, ""
    while (up := parent(at)) is not None:
        if isinstance(up, _HOLDING):
            several, suffix = True, "[]"
        elif isinstance(up, ast.Assign | ast.AnnAssign):
            target = up.targets[0] if isinstance(up, ast.Assign) else up.target
            return _of_target(target, suffix, several, fn) or SiteName(_by_line(node, fn), True)
        elif isinstance(up, ast.Call) and at is not up.func and isinstance(up.func, ast.Attribute):
            if up.func.attr not in FILLS:
                break
            keyed = slot_of(up.args[0]) if up.func.attr == "setdefault" else None
            key = "[]" if keyed is None else f"[{keyed!r}]"
            return _of_target(up.func.value, key, keyed is None, fn) or SiteName(_by_line(node, fn), True)
        elif isinstance(up, ast.stmt) or not isinstance(up, (*_ALIKE, ast.Call, ast.withitem)):
            break
        at = up
    return SiteName(_by_line(node, fn), True)


def _by_line(node: ast.expr, fn: Function) -> str:
    return f"{fn.qualname}:{node.lineno}"


def _of_target(target: ast.expr, suffix: str, several: bool, fn: Function) -> SiteName | None:
    if isinstance(target, ast.Subscript):
        slot = slot_of(target.slice)
        return _of_target(target.value, "[]" if slot is None else f"[{slot!r}]", slot is None, fn)
    if isinstance(target, ast.Name):
        shared = fn.outer is None or target.id in fn.globals
        return SiteName(f"{target.id if shared else f'{fn.qualname}.{target.id}'}{suffix}", several)
    if isinstance(target, ast.Attribute):
        is_member = fn.cls is not None and dotted(target.value) in (fn.self_name, fn.cls.name, "cls")
        owner = fn.cls.name if is_member and fn.cls is not None else short_name(target.value)
        return SiteName(f"{owner}.{target.attr}{suffix}", several) if owner else None
    return None
