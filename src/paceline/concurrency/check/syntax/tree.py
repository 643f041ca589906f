"""What is around a node of the syntax tree, which lines it is on, and what it is called."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from paceline.concurrency.check.libraries.catalogue import MODULE_ALIASES, RETURNS_MODEL, WRAPPERS

N = TypeVar("N", bound=ast.AST)


def parent(node: ast.AST) -> ast.AST | None:
    """The enclosing syntax node, as recorded by the pass over the file."""
    return getattr(node, "up", None)


def user_of(call: ast.Call) -> ast.AST | None:
    """The syntax node that gets a call's result: its parent, or that of the await around it."""
    up = parent(call)
    return parent(up) if isinstance(up, ast.Await) else up


def awaited(value: ast.expr | None) -> ast.expr | None:
    """What an await waits for; another value as it is."""
    return value.value if isinstance(value, ast.Await) else value


def enclosing(node: ast.AST, *kinds: type[N]) -> N | None:
    """The nearest enclosing node of these kinds within the same function."""
    at = parent(node)
    while at is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        if isinstance(at, kinds):
            return at
        at = parent(at)
    return None


def around(node: ast.AST, *kinds: type[N]) -> Iterator[N]:
    """All enclosing nodes of these kinds within the same function, the nearest first."""
    at = enclosing(node, *kinds)
    while at is not None:
        yield at
        at = enclosing(at, *kinds)


def on_different_branches(one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes are on different branches of one `if`, so that one run takes only one of them."""
    around = {id(at): up for at, up in _upwards(other)}
    for at, up in _upwards(one):
        if isinstance(up, ast.If):
            across = up.orelse if at in up.body else up.body if at in up.orelse else []
            if any(around.get(id(statement)) is up for statement in across):
                return True
    return False


def _upwards(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """A node and those around it within its function, each with the one around it."""
    at, up = node, parent(node)
    while up is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        yield at, up
        at, up = up, parent(up)


def walk_here(*parts: ast.AST) -> Iterator[ast.AST]:
    """These nodes and all below them, without what is in the functions and classes that they define."""
    todo = list(parts)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def contexts_around(node: ast.AST) -> Iterator[ast.expr]:
    """What the `with` statements around a node within its function enter, the nearest first."""
    for block in around(node, ast.With, ast.AsyncWith):
        yield from (item.context_expr for item in block.items)  # type: ignore[attr-defined]


def deciding_operand(call: ast.expr) -> ast.expr | None:
    """What decides within an expression whether a call is made; None when nothing does."""
    at, up = call, parent(call)
    while isinstance(up, ast.expr | ast.keyword):
        if isinstance(up, ast.BoolOp) and at is not up.values[0]:
            return up.values[0]
        if isinstance(up, ast.IfExp) and at is not up.test:
            other = up.orelse if at is up.body else up.body
            return None if any(isinstance(n, ast.Call) for n in ast.walk(other)) else up.test
        at, up = up, parent(up)  # type: ignore[assignment]
    return None


def statement_of(node: ast.AST) -> ast.stmt | None:
    """The statement that a node is, or is a part of."""
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.stmt):
        at = parent(at)
    return at


def block_of(statement: ast.AST | None) -> list[ast.stmt]:
    """The block that a statement is in, from its first to its last statement; empty for anything else."""
    up = parent(statement) if isinstance(statement, ast.stmt) else None
    blocks = (getattr(up, name, None) for name in ("body", "orelse", "finalbody"))
    return next((block for block in blocks if isinstance(block, list) and statement in block), [])


def following(statement: ast.AST | None) -> list[ast.stmt]:
    """The statements after one in its block."""
    block = block_of(statement)
    return block[block.index(statement) + 1 :] if block else []  # type: ignore[arg-type]


def last_line(part: ast.AST | Sequence[ast.stmt]) -> int:
    """The last line of a node or a block; 0 where it has none."""
    if isinstance(part, ast.AST):
        return getattr(part, "end_lineno", None) or 0
    return last_line(part[-1]) if part else 0


def lines_of(part: ast.AST | Sequence[ast.stmt]) -> range:
    """The lines of a node or a block."""
    first = part if isinstance(part, ast.AST) else part[0] if part else None
    return range(getattr(first, "lineno", 1), last_line(part) + 1)


def is_within(node: ast.AST, part: ast.AST | Sequence[ast.stmt]) -> bool:
    """Whether a node is within the lines of another one, or of a block."""
    return getattr(node, "lineno", 0) in lines_of(part)


# Names of expressions as text, and the arguments of calls.


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


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """All arguments of a call, the named ones last."""
    return [*call.args, *(k.value for k in call.keywords)]


def receiver_of(call: ast.Call) -> ast.expr | None:
    """The object of which a call is a method, or the module of whose functions it is one."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def method_of(call: ast.Call) -> str:
    """The method that a call is of an object; empty for a call of a plain name."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def calls_in(parts: Iterable[ast.AST]) -> list[ast.Call]:
    """The calls in some nodes."""
    return [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Call)]


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
