"""A consumer that ends because its producers have ended, after it has found the queue empty.

The queue is empty, and only then the consumer asks whether the producers still run: one that has put its last item in
between, and ended, is gone, and its item is never taken. Ask first and look into the queue afterwards, look once more
before the end, or let the producers put an end mark.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import enclosing, last_line

ALIVE = ("is_alive", "isAlive")
TAKES = ("get", "get_nowait", "empty", "qsize")


def find(facts: Facts) -> Iterator[Finding]:
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


def _report(fn: Function, test: ast.If, check: ast.Call, queue: str, line: int) -> Finding:
    producer = dotted(check.func.value)  # type: ignore[attr-defined]
    return finding(
        test,
        fn,
        f"{queue} is found empty at line {line}, and only then {producer} is asked whether it runs: what it puts in "
        "between, before it ends, is never taken",
        [
            Step("the consumer", line, f"{fn.qualname} finds {queue} empty"),
            Step("the producer", line, "puts its last item, and ends"),
            Step("the consumer", test.lineno, f"finds that {producer} has ended, and ends too: the item is lost"),
        ],
        remedy="ask whether the producer runs before you look into the queue, or look once more before the end",
        about=queue,
        confidence=0.55,
    )


RULE = Rule(
    "PC226",
    "ended-then-empty",
    "a queue found empty before the producers are asked whether they have ended",
    find,
    bad="""
        import queue
        import threading

        class Reader:
            def __init__(self, lines):
                self.lines = lines
                self.queue = queue.Queue()
                self.thread = threading.Thread(target=self._fill)
                self.thread.start()

            def _fill(self):
                for line in self.lines:
                    self.queue.put(line)

            def read(self):
                while True:
                    try:
                        yield self.queue.get(timeout=1)
                    except queue.Empty:
                        if not self.thread.is_alive():
                            break
    """,
    good="""
        import queue
        import threading

        class Reader:
            def __init__(self, lines):
                self.lines = lines
                self.queue = queue.Queue()
                self.thread = threading.Thread(target=self._fill)
                self.thread.start()

            def _fill(self):
                try:
                    for line in self.lines:
                        self.queue.put(line)
                finally:
                    self.queue.put(None)

            def read(self):
                while True:
                    line = self.queue.get()
                    if line is None:
                        break
                    yield line
    """,
    needs=("is_alive", "isAlive"),
)
