"""Names of expressions as text, and the arguments of calls."""

from __future__ import annotations

import ast

from paceline.concurrency.check.libraries.catalogue import MODULE_ALIASES, RETURNS_MODEL, WRAPPERS


def dotted(node: ast.AST) -> str:
    """`self.pool.lock` as text, with calls and subscripts as `()` and `[]`; empty when it is not a name."""
    if type(node) is ast.Name:
        return node.id
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


def short_name(node: ast.AST) -> str:
    """The last part of a name: `wait` of `self.event.wait`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """The local names that an import binds, and their canonical names."""
    names = {}
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "") + "."
            names[alias.asname or alias.name] = original(origin.replace("..", ".") + alias.name)
        elif alias.asname:
            names[alias.asname] = original(alias.name)
        else:
            head = alias.name.split(".")[0]
            names[head] = MODULE_ALIASES.get(head, head)
    return names


def original(name: str) -> str:
    """A canonical name with re-exporting modules replaced by the original ones."""
    name = name.removeprefix(".six.moves.").removeprefix("six.moves.")
    if name.partition(".")[0] not in _HEADS:
        return name
    for other, usual in MODULE_ALIASES.items():
        if name == other:
            return usual
        if name.startswith(other) and name[len(other)] == ".":
            return usual + name[len(other) :]
    return name


_HEADS = {name.partition(".")[0] for name in MODULE_ALIASES}


def model_in(call: ast.Call) -> ast.expr | None:
    """The model that a call wraps, moves or switches: `net` of `DDP(net)` and of `net.cuda()`."""
    if short_name(call.func) in WRAPPERS and call.args:
        return call.args[0]
    returned = isinstance(call.func, ast.Attribute) and call.func.attr in RETURNS_MODEL
    return call.func.value if returned else None  # type: ignore[attr-defined]


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument of a call, by its name or its position."""
    for argument in call.keywords:
        if argument.arg == name:
            return argument.value
    if position is not None and position < len(call.args):
        return call.args[position]
    return None


def is_constant(node: ast.AST | None, value: object) -> bool:
    """Whether this is a literal of the same type and value."""
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value


def names_of(target: ast.expr) -> list[ast.Name]:
    """The variables in an expression."""
    return [n for n in ast.walk(target) if isinstance(n, ast.Name)]


def binds(target: ast.expr, name: str) -> bool:
    """Whether an assignment to this target gives a value to a variable."""
    if isinstance(target, ast.Name):
        return target.id == name
    return isinstance(target, ast.Tuple | ast.List) and any(binds(t, name) for t in target.elts)


def reads(node: ast.expr, name: str) -> bool:
    """Whether a variable is in an expression."""
    return any(n.id == name for n in names_of(node))
