"""A lock that no other thread can take."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import parent


def find(facts: Facts) -> Iterator[Witness]:
    """Report locks that are created where they are taken, and local locks that do not leave their function."""
    module = facts.module
    for fn in module.functions:
        for statement in fn.withs:
            for item in statement.items:
                construction = (
                    module.constructed(item.context_expr, fn) if isinstance(item.context_expr, ast.Call) else None
                )
                if (
                    construction is not None
                    and construction[0] in LOCKS
                    and item.optional_vars is None
                    and not construction[1].args
                ):
                    yield Witness(
                        item.context_expr,
                        fn,
                        message="a new lock is created here each time, so it excludes no other thread",
                        name="",
                    )
        if fn is module.top:
            continue
        for target, value in fn.assigns:
            construction = module.constructed(value, fn)
            if (
                construction is None
                or construction[0] not in ("Lock", "RLock", "AsyncLock")
                or not isinstance(target, ast.Name)
            ):
                continue
            if len(getattr(parent(target), "targets", ())) > 1:
                continue  # `self.locks[key] = lock = Lock()`
            if target.id not in fn.globals and _stays(target.id, fn):
                yield Witness(
                    value,
                    fn,
                    message=f"the lock {target.id} never leaves {fn.qualname}: every call creates its own",
                    name=target.id,
                )


def _stays(name: str, fn: Function) -> bool:
    """Whether the name is used only in `with` and for the lock's methods, in this function alone."""
    used = False
    for node in ast.walk(fn.node):
        if isinstance(node, ast.Nonlocal) and name in node.names:
            return False
        if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Store):
            continue
        around = parent(node)
        if _owner(node, fn) is not fn.node:
            return False
        if (isinstance(around, ast.withitem) and around.context_expr is node) or (
            isinstance(around, ast.Attribute) and around.attr in ("acquire", "release", "locked")
        ):
            used = True
        else:
            return False
    return used


def _owner(node: ast.AST, fn: Function) -> ast.AST | None:
    """The function in whose body a node is."""
    at = parent(node)
    while at is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        at = parent(at)
    return at
