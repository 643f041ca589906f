"""A consumer that takes a pause of its producer for the end, while the producer waits for room.

`get(timeout=2)` raises `queue.Empty` when nothing came for two seconds. A thread that leaves its loop then is gone when
the producer, which was only slow, continues: what it puts is never read, and once a bounded queue is full, `put()`
waits for ever. End the consumer by an end mark.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.threads.roots import in_loop


def find(facts: Facts) -> Iterator[Finding]:
    """Report threads that leave the loop in which they read a bounded queue once it was empty for a while."""
    for fn in {id(r.function): r.function for r in facts.roots if r.kind == "thread"}.values():
        for call in fn.calls:
            queue = queue_of(call, ("get",), fn, facts, bounded=True)
            tried, loop = enclosing(call, ast.Try), enclosing(call, ast.While)
            if not queue or not has_timeout(call, "get") or not isinstance(loop, ast.While):
                continue
            handlers = tried.handlers if isinstance(tried, ast.Try) else []
            empty = [h for h in handlers if h.type is not None and short_name(h.type) in ("Empty", "Exception")]
            exits = [h for h in empty if _leaves(h)]
            endless = isinstance(loop.test, ast.Constant)
            put = _put(queue, fn, facts)
            if exits and endless and put is not None and not _ends(loop, exits[0]):
                yield _report(fn, exits[0], queue, *put)


def _leaves(handler: ast.ExceptHandler) -> bool:
    return len(handler.body) > 0 and isinstance(handler.body[-1], ast.Break | ast.Return)


def _ends(loop: ast.While, handler: ast.ExceptHandler) -> bool:
    """Whether the loop has another end: an end mark, a flag."""
    inside = {id(n) for n in ast.walk(handler)}
    return any(isinstance(n, ast.Break | ast.Return) and id(n) not in inside for n in ast.walk(loop))


def _put(queue: str, consumer: Function, facts: Facts) -> tuple[Function, ast.Call] | None:
    """Where a loop puts into the queue and waits for room."""
    for fn in facts.module.functions:
        for call in fn.calls if fn is not consumer else ():
            if queue_of(call, ("put",), fn, facts) == queue and in_loop(call, fn) and not has_timeout(call, "put"):
                return fn, call
    return None


def _report(fn: Function, handler: ast.ExceptHandler, queue: str, producer: Function, put: ast.Call) -> Finding:
    return finding(
        handler.body[-1],
        fn,
        f"{fn.qualname} ends when nothing came into {queue} for a while; {producer.qualname}, which was only slow, "
        f"then fills it and waits for room for ever (line {put.lineno})",
        [
            Step("thread A", put.lineno, f"{producer.qualname} is slow"),
            Step("thread B", handler.lineno, f"{fn.qualname} gets nothing in time, and ends"),
            Step("thread A", put.lineno, f"fills {queue}, and waits for room: nothing reads it any more"),
        ],
        remedy="put an end mark into the queue, and leave the loop when it comes",
        about=queue,
        confidence=0.7,
    )


RULE = Rule(
    "PC237",
    "left-early",
    "a consumer that takes a pause of its producer for the end",
    find,
    bad="""
        import queue
        import threading

        def write(rows, file):
            while True:
                try:
                    row = rows.get(timeout=2)
                except queue.Empty:
                    break
                file.write(row)

        def load(source, file):
            rows = queue.Queue(100)
            threading.Thread(target=write, args=(rows, file)).start()
            for row in source:
                rows.put(row)
    """,
    good="""
        import queue
        import threading

        def write(rows, file):
            while True:
                row = rows.get()
                if row is None:
                    break
                file.write(row)

        def load(source, file):
            rows = queue.Queue(100)
            threading.Thread(target=write, args=(rows, file)).start()
            for row in source:
                rows.put(row)
            rows.put(None)
    """,
    needs=("Empty",),
)
