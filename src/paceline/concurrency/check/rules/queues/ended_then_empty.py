"""A consumer that ends because its producers have ended, after it has found the queue empty."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing, last_line

ALIVE = ("is_alive", "isAlive")
TAKES = ("get", "get_nowait", "empty", "qsize")


def find(facts: Facts) -> Iterator[Witness]:
    """Report loops over a queue that end where it was found empty and no producer is alive."""
    for fn in facts.module.functions:
        for test in fn.tests:
            if not isinstance(test, ast.If) or (check := _asks_for_life(test, fn)) is None:
                continue
            empty = _found_empty(test, fn, facts)
            if empty is not None and not _checks_again(test, fn, facts):
                yield _report(fn, test, check, *empty)
                break


def _asks_for_life(test: ast.If, fn: Function) -> ast.Call | None:
    """The `is_alive()` of a test that ends the loop where nothing is alive any more."""
    value = fn.bound.get(test.test.id, test.test) if isinstance(test.test, ast.Name) else test.test
    checks = [n for n in ast.walk(value) if isinstance(n, ast.Call) and short_name(n.func) in ALIVE]
    negated = any(isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not) for n in ast.walk(value))
    last = test.body[-1]
    stops = isinstance(last, ast.Raise) and last.exc is not None and "StopIteration" in ast.unparse(last.exc)
    ends = stops or isinstance(last, ast.Break | ast.Return)
    return checks[0] if len(checks) == 1 and negated and ends and enclosing(test, ast.While, ast.For) else None


def _found_empty(test: ast.If, fn: Function, facts: Facts) -> tuple[str, int] | None:
    """The queue that was found empty before a test, and where: by an exception, or by asking it."""
    handler = enclosing(test, ast.ExceptHandler)
    if isinstance(handler, ast.ExceptHandler) and handler.type is not None and "Empty" in ast.unparse(handler.type):
        tried = getattr(handler, "up", None)
        gets = [n for s in getattr(tried, "body", ()) for n in ast.walk(s) if isinstance(n, ast.Call)]
        return next(((q, c.lineno) for c in gets if (q := queue_of(c, ("get", "get_nowait"), fn, facts))), None)
    around = enclosing(test, ast.If)
    if isinstance(around, ast.If) and any(test is s for s in around.orelse):
        asks = [n for n in ast.walk(around.test) if isinstance(n, ast.Call)]
        return next(((q, c.lineno) for c in asks if (q := queue_of(c, ("empty", "qsize"), fn, facts))), None)
    return None


def _checks_again(test: ast.If, fn: Function, facts: Facts) -> bool:
    """Whether the queue is asked in the test or in its body, or emptied after the loop."""
    loop = enclosing(test, ast.While, ast.For)
    last = last_line(loop) if loop is not None else 0
    for call in fn.calls:
        inside = test.lineno <= call.lineno <= last_line(test.body)
        if (inside or call.lineno > last) and queue_of(call, TAKES, fn, facts):
            return True
    return False


def _report(fn: Function, test: ast.If, check: ast.Call, queue: str, line: int) -> Witness:
    return Witness(test, fn, queue=queue, line=line, check=check)
