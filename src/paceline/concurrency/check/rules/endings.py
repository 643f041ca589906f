"""The end marks by which workers that read a queue end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.rules.rule import queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import awaited, dotted, short_name
from paceline.concurrency.check.threads.roots import in_loop


def ends_by(fn: Function, facts: Facts) -> Iterator[tuple[str, str, ast.Call]]:
    """The queues whose end mark ends a worker: `item = queue.get()`, then `if item is None: return`, or an iterator."""
    for loop in fn.loops:
        call = loop.iter if isinstance(loop, ast.For) else None
        if isinstance(call, ast.Call) and short_name(call.func) == "iter" and len(call.args) == 2:
            queue = queue_of(ast.Call(call.args[0], [], []), ("get",), fn, facts)
            if queue:
                yield queue, ast.unparse(call.args[1]), call
    for target, value in fn.assigns:
        get = awaited(value)
        if not isinstance(get, ast.Call) or not isinstance(target, ast.Name) or not in_loop(get, fn):
            continue
        queue = queue_of(get, ("get",), fn, facts)
        puts = [ast.unparse(c.args[0]) for c in fn.calls if c.args and queue_of(c, PUTS, fn, facts) == queue]
        for test in fn.tests if queue else ():
            comparison = test.test
            if not isinstance(comparison, ast.Compare):
                continue
            leaves = isinstance(test, ast.If) and isinstance(test.body[-1], ast.Return | ast.Break)
            ends = leaves and isinstance(comparison.ops[0], ast.Is | ast.Eq)
            goes_on = isinstance(test, ast.While) and isinstance(comparison.ops[0], ast.IsNot | ast.NotEq)
            item = comparison.left.target if isinstance(comparison.left, ast.NamedExpr) else comparison.left
            mark = ast.unparse(comparison.comparators[0])
            if dotted(item) == target.id and (ends or goes_on) and not {mark, target.id} & set(puts):
                yield queue, mark, get
