"""A bounded queue that is filled before the threads that empty it are started.

`put` waits while the queue is full, for a consumer that the same thread starts only afterwards. It works as long as
there are few items. Start the consumers first, or give the queue no size.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.flow.effects import has_timeout
from paceline.check.reporting.findings import Finding, Step
from paceline.check.rules.rule import Rule, finding, queue_of
from paceline.check.summaries import Facts
from paceline.check.syntax.declarations import Function
from paceline.check.syntax.names import short_name
from paceline.check.threads.roots import in_loop
from paceline.narrative import Wait


def find(facts: Facts) -> Iterator[Finding]:
    """Report puts in a loop, into a bounded queue that only threads started later empty."""
    for fn in facts.module.functions:
        puts = [c for c in fn.calls if in_loop(c, fn) and queue_of(c, ("put",), fn, facts, bounded=True)]
        starts = [c for c in fn.calls if _starts(c)] if puts else []
        for put in puts if starts and all(start.lineno > put.lineno for put in puts for start in starts) else ():
            queue = queue_of(put, ("put",), fn, facts)
            made = fn.bound.get(queue.rpartition(".")[2], put)
            if any(isinstance(n, ast.Call) and short_name(n.func) == "len" for n in ast.walk(made)):
                continue  # it has room for all that is put
            takers = [
                f for f in facts.module.functions if any(queue_of(c, ("get",), f, facts) == queue for c in f.calls)
            ]
            begun = {id(root.function) for root in facts.roots if root.kind in ("thread", "process")}
            if takers and all(id(f) in begun for f in takers) and not has_timeout(put, "put"):
                yield _report(fn, put, queue, takers[0], starts[0])
                break


def _starts(call: ast.Call) -> bool:
    """Whether a call starts a thread or process."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "start" and not call.args


def _report(fn: Function, put: ast.Call, queue: str, taker: Function, start: ast.Call) -> Finding:
    return finding(
        put,
        fn,
        f"{queue} is bounded and filled here, but {taker.qualname}, which empties it, is started at line "
        f"{start.lineno}: once the queue is full, this waits for a thread that does not run yet",
        [
            Step("thread A", put.lineno, f"{fn.qualname} fills {queue} and waits for a consumer"),
            Step("thread A", start.lineno, f"would start {taker.qualname}, which it never reaches"),
        ],
        "start the consumers first, or give the queue no size",
        queue,
        0.8,
        [Wait("thread A", f"filled {queue}", "take an item out", "the thread that it has not started")],
    )


RULE = Rule(
    "PC212",
    "filled-before-started",
    "a bounded queue that is filled before the threads that empty it are started",
    find,
    bad="""
        import queue
        import threading

        def run(items, work):
            todo = queue.Queue(maxsize=8)

            def consume():
                while (item := todo.get()) is not None:
                    work(item)

            consumer = threading.Thread(target=consume)
            for item in items:
                todo.put(item)
            consumer.start()
    """,
    good="""
        import queue
        import threading

        def run(items, work):
            todo = queue.Queue(maxsize=8)

            def consume():
                while (item := todo.get()) is not None:
                    work(item)

            consumer = threading.Thread(target=consume)
            consumer.start()
            for item in items:
                todo.put(item)
    """,
    needs=("Queue",),
)
