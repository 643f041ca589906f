"""Names: what an expression is called, and what it is called where it comes from."""

from __future__ import annotations

import ast

from paceline.check.catalogue import SAME


def dotted(node: ast.AST) -> str:
    """`self.pool.lock` as text; a call or subscript in between is `()` or `[]`; else empty."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append("." + node.attr)
            node = node.value
        elif isinstance(node, ast.Name):
            parts.append(node.id)
            return "".join(reversed(parts))
        elif isinstance(node, ast.Call):
            parts.append("()")
            node = node.func
        elif isinstance(node, ast.Subscript):
            parts.append("[]")
            node = node.value
        else:
            return ""


def last(node: ast.AST) -> str:
    """The last word of a name: `wait` of `self.event.wait`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Local name -> canonical name."""
    found = {}
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "") + "."
            found[alias.asname or alias.name] = same(origin.replace("..", ".") + alias.name)
        elif alias.asname:
            found[alias.asname] = same(alias.name)
        else:
            head = alias.name.split(".")[0]
            found[head] = SAME.get(head, head)
    return found


def same(name: str) -> str:
    """A canonical name under the module's usual name."""
    name = name.removeprefix(".six.moves.").removeprefix("six.moves.")
    if name.partition(".")[0] not in _HEADS:
        return name
    for other, usual in SAME.items():
        if name == other:
            return usual
        if name.startswith(other) and name[len(other)] == ".":
            return usual + name[len(other) :]
    return name


_HEADS = {name.partition(".")[0] for name in SAME}


def parent(node: ast.AST) -> ast.AST | None:
    """The syntax around this; set by the module's one pass."""
    return getattr(node, "up", None)


def inside(node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
    """The nearest enclosing syntax of these kinds within the same function."""
    at = parent(node)
    while at is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        if isinstance(at, kinds):
            return at
        at = parent(at)
    return None


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument by its name or its place."""
    for given in call.keywords:
        if given.arg == name:
            return given.value
    if position is not None and position < len(call.args):
        return call.args[position]
    return None


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value
