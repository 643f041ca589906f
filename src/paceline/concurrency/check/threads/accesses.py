"""Reads and changes of shared state: what each expression does to the attribute or global that it names."""

from __future__ import annotations

import ast
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, is_constant, keyword, parent, short_name

GROWS = {"append", "add", "insert", "extend", "update", "setdefault", "appendleft", "push", "move_to_end"}
SHRINKS = {"pop", "popitem", "remove", "discard", "clear", "popleft"}
#: Functions that change the list that they are given first.
OF_LISTS: dict[str, str] = libraries.table("functions that change a list")
VIEWS = {"items", "keys", "values", "iteritems", "iterkeys", "itervalues"}


class Access(NamedTuple):
    """One read or change of an attribute or a global."""

    thing: str  # `Pool.free`, or the name of a global
    kind: str  # read, item, view, iterate, write, none (a write of None), update (x += 1), grow, shrink
    node: ast.AST
    fn: Function
    locks: frozenset[str]  # held for certain

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)

    @property
    def changes(self) -> bool:
        """Whether this is a change rather than a read."""
        return self.kind in ("write", "none", "update", "grow", "shrink")


def kind_of(node: ast.Attribute | ast.Name | ast.Subscript) -> str:
    """The kind of access that this expression is, by the syntax around it."""
    up = parent(node)
    if isinstance(node.ctx, ast.Store):
        if isinstance(up, ast.AugAssign) or (isinstance(up, ast.Assign) and _counts(node, up.value)):
            return "update"
        return "none" if isinstance(up, ast.Assign) and is_constant(up.value, None) else "write"
    if isinstance(node.ctx, ast.Del):
        return "none"
    if isinstance(up, ast.Subscript) and up.value is node:
        around = parent(up)
        if isinstance(up.ctx, ast.Del):
            return "shrink"
        if isinstance(around, ast.AugAssign) and around.target is up:
            return "update"
        return "grow" if isinstance(up.ctx, ast.Store) else "item"
    if isinstance(up, ast.Attribute) and isinstance(parent(up), ast.Call) and parent(up).func is up:  # type: ignore[union-attr]
        if up.attr in GROWS:
            return "grow"
        if up.attr in SHRINKS:
            return "shrink"
        if up.attr in VIEWS:
            return "view"
    if isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.attr in VIEWS and node in up.args:
        return "view"  # six.itervalues(d)
    if isinstance(up, ast.For | ast.AsyncFor | ast.comprehension) and up.iter is node:
        return "iterate"
    if isinstance(up, ast.Call) and up.args[:1] == [node]:
        return OF_LISTS.get(short_name(up.func), "read")
    return "read"


def _counts(target: ast.expr, value: ast.expr) -> bool:
    """Whether a value is the old one and something: `self.x = self.x + 1`."""
    return isinstance(value, ast.BinOp) and dotted(value.left) == dotted(target) != ""


def iterates(access: Access) -> bool:
    """Whether a loop iterates over the container or over a view of it, rather than over a copy."""
    if access.kind == "iterate":
        return True
    if access.kind == "read":
        return _walks(access.node)
    if access.kind != "view":
        return False
    call = parent(access.node)
    call = call if isinstance(call, ast.Call) else parent(call)  # type: ignore[arg-type]
    up = parent(call) if call is not None else None
    if isinstance(up, ast.For | ast.AsyncFor | ast.comprehension):
        return True
    return isinstance(up, ast.Return) or (call is not None and _walks(call))


def _walks(node: ast.AST) -> bool:
    """Whether a call takes one item after the other, with other code in between: `enumerate(d)`, `json.dump(d, f)`."""
    call = parent(node)
    if not isinstance(call, ast.Call) or node not in call.args:
        return False
    name, up = dotted(call.func), parent(call)
    if name in _LAZY:
        return isinstance(up, ast.For | ast.AsyncFor | ast.comprehension) and up.iter is call
    if name in ("max", "min", "json.dumps"):
        return keyword(call, "key" if name != "json.dumps" else "indent") is not None
    return name in _COPIERS and call.args[0] is node


#: Functions that a loop goes over in place of their argument, without a copy of it.
_LAZY = {"enumerate", "zip", "map", "filter", "chain", "itertools.chain", "islice", "itertools.islice"}
#: Functions in Python code, or that call it, which go over a container and all that it holds.
_COPIERS = libraries.names("functions in Python that go over a container")
