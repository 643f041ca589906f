"""A timeout after which the end of the executor's block still waits for the task."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness, blocks_that_make
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword
from paceline.concurrency.check.syntax.tree import is_within


def find(facts: Facts) -> Iterator[Witness]:
    """Report results that are waited for with a timeout inside the block of the executor that computes them."""
    for fn in facts.module.functions:
        for block, name in blocks_that_make("Executor", fn, facts):
            call = _limited(block, name, fn)
            if call is not None:
                yield Witness(call, fn, block=block)


def _limited(block: ast.With | ast.AsyncWith, pool: str, fn: Function) -> ast.Call | None:
    """The first `result(timeout=...)` in a block of a task that was submitted there."""
    for call in fn.calls:
        inside = is_within(call, block) and isinstance(call.func, ast.Attribute)
        if not inside or call.func.attr not in ("result", "exception"):  # type: ignore[attr-defined]
            continue
        limit = keyword(call, "timeout", 0)
        task = call.func.value  # type: ignore[attr-defined]
        value = fn.bound.get(task.id) if isinstance(task, ast.Name) else task
        submitted = isinstance(value, ast.Call) and dotted(value.func) == f"{pool}.submit"
        if submitted and limit is not None and not is_constant(limit, None) and not is_constant(limit, 0):
            return call
    return None
