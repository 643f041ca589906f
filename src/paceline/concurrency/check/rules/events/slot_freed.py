"""A semaphore that limits how tasks are started, rather than how many of them run.

`with slots: pool.submit(work)` gives the permit back as soon as the task is in the executor's queue: all tasks are
queued at once, whatever the limit is. Take the permit before, and release it when the task ends: in the task, or by
`add_done_callback`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name

STARTS = ("submit", "apply_async", "start")
WAITS = ("result", "join", "get", "wait", "map", "as_completed", "run")


def find(facts: Facts) -> Iterator[Finding]:
    """Report blocks of a semaphore that start a task and wait for nothing."""
    for fn in facts.module.functions:
        for block in fn.withs:
            slots = facts.module.resource(block.items[0].context_expr, fn) if isinstance(block, ast.With) else None
            if slots is None or slots.kind != "Semaphore" or not slots.sure:
                continue
            calls = [n for s in block.body for n in ast.walk(s) if isinstance(n, ast.Call)]
            start = next((c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in STARTS), None)
            if start is not None and not any(short_name(c.func) in WAITS for c in calls):
                yield _report(fn, start, slots.id)


def _report(fn: Function, start: ast.Call, slots: str) -> Finding:
    return finding(
        start,
        fn,
        f"{slots} is released as soon as the task is started, before it has ended: it does not limit how many "
        "tasks run",
        [
            Step("thread A", start.lineno, f"{fn.qualname} starts a task under a permit of {slots}"),
            Step("thread A", start.lineno, "leaves the block: the permit is free, and the task has hardly begun"),
        ],
        remedy=f"acquire {slots} before, and release it where the task ends",
        about=slots,
        confidence=0.7,
    )


RULE = Rule(
    "PC236",
    "slot-freed",
    "a semaphore that is released when a task starts, rather than when it ends",
    find,
    bad="""
        import threading
        from concurrent.futures import ThreadPoolExecutor

        slots = threading.Semaphore(4)

        def run(pool: ThreadPoolExecutor, work, items):
            for item in items:
                with slots:
                    pool.submit(work, item)
    """,
    good="""
        import threading
        from concurrent.futures import ThreadPoolExecutor

        slots = threading.Semaphore(4)

        def run(pool: ThreadPoolExecutor, work, items):
            for item in items:
                slots.acquire()
                task = pool.submit(work, item)
                task.add_done_callback(lambda _: slots.release())
    """,
    needs=("Semaphore",),
)
