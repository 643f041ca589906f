"""A loop of a coroutine that waits for a change without letting anything else run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import enclosing

#: Calls that change nothing that a loop may wait for.
IDLE = {"print", "sleep", "debug", "info", "warning", "log", "len", "str", "repr", "format", "monotonic"}
#: Questions whose answer another task changes.
ASKS = {"done", "is_set", "locked", "empty", "full", "cancelled", "qsize"}


def find(facts: Facts) -> Iterator[Witness]:
    """Report loops of coroutines that ask for what only another task can change, and do nothing else."""
    for fn in facts.module.functions:
        for loop in fn.loops if fn.asynchronous else ():
            if (
                isinstance(loop, ast.While)
                and (condition := _asks(loop.test, fn, facts))
                and not _does_something(loop, fn, facts)
            ):
                yield Witness(loop, fn, condition=condition)


def _asks(test: ast.expr, fn: Function, facts: Facts) -> str:
    """The attribute, global or state of an object that a test asks for; empty where it asks for anything else."""
    called = [n for n in ast.walk(test) if isinstance(n, ast.Call)]
    if any(not isinstance(c.func, ast.Attribute) or c.func.attr not in ASKS or c.args for c in called):
        return ""
    if any(isinstance(n, ast.Await | ast.NamedExpr) for n in ast.walk(test)):
        return ""
    if called:
        return ast.unparse(called[0])
    inner = test.operand if isinstance(test, ast.UnaryOp) else test.left if isinstance(test, ast.Compare) else test
    if isinstance(inner, ast.Name) and (
        inner.id in fn.globals or inner.id in fn.nonlocals or _of_file(inner, fn, facts)
    ):
        return inner.id
    if (
        not isinstance(inner, ast.Attribute)
        or not fn.self_name
        or dotted(inner.value) != fn.self_name
        or fn.cls is None
    ):
        return ""
    set_by = [scope for _, scope in fn.cls.values.get(inner.attr, ()) if scope is not fn and scope.name != "__init__"]
    return dotted(inner) if set_by else ""


def _of_file(name: ast.Name, fn: Function, facts: Facts) -> bool:
    """Whether a name is a global that other functions change."""
    local_names = {n.id for scope in fn.scopes() for n in scope.stores if scope is not facts.module.top}
    changed = any(name.id in f.globals for f in facts.module.functions if f is not fn)
    return changed and name.id not in local_names and all(name.id not in s.parameters for s in fn.scopes())


def _does_something(loop: ast.While, fn: Function, facts: Facts) -> bool:
    """Whether a turn of the loop awaits, leaves or changes something itself, or calls what may do that."""
    for node in (n for statement in loop.body for n in ast.walk(statement)):
        if isinstance(node, ast.AsyncFor | ast.AsyncWith | ast.Yield | ast.Break | ast.Return | ast.Raise):
            return True
        if isinstance(node, ast.Await):
            if facts.lets_others_run(node, fn):
                return True
        elif isinstance(node, ast.Call):
            around = enclosing(node, ast.Await)
            awaited = isinstance(around, ast.Await) and around.value is node
            if not awaited and short_name(node.func) not in IDLE:
                return True
        elif isinstance(node, ast.Attribute | ast.Name) and not isinstance(node.ctx, ast.Load):
            return True
    return False
