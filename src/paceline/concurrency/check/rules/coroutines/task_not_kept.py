"""A task of asyncio that nothing refers to."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import parent

STARTS = ("create_task", "ensure_future")


def find(facts: Facts) -> Iterator[Witness]:
    """Report calls of create_task and ensure_future that are statements of their own."""
    for fn in facts.module.functions:
        for call in fn.calls:
            if short_name(call.func) in STARTS and isinstance(parent(call), ast.Expr) and _of_asyncio(call, facts):
                yield _report(call, fn)


def _of_asyncio(call: ast.Call, facts: Facts) -> bool:
    """Whether asyncio or one of its loops starts the task: a task group keeps its tasks itself."""
    name = facts.module.canonical(call.func)
    if name in ("asyncio.create_task", "asyncio.ensure_future"):
        return True
    owner = dotted(call.func.value).lower() if isinstance(call.func, ast.Attribute) else ""
    return bool(call.args) and owner.removesuffix("()").rpartition(".")[2].strip("_").endswith("loop")


def _report(call: ast.Call, fn: Function) -> Witness:
    what = text_of(call.args[0] if call.args else call) or "the coroutine"
    return Witness(call, fn, what=what)
