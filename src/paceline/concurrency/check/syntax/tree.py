"""What is around a node of the syntax tree, and which lines it is on."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


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


def enclosing(node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
    """The nearest enclosing node of these kinds within the same function."""
    at = parent(node)
    while at is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        if isinstance(at, kinds):
            return at
        at = parent(at)
    return None


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
    block = enclosing(node, ast.With, ast.AsyncWith)
    while isinstance(block, ast.With | ast.AsyncWith):
        yield from (item.context_expr for item in block.items)
        block = enclosing(block, ast.With, ast.AsyncWith)


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
