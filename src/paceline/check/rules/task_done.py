"""A queue whose `join()` counts items that are never marked done.

`Queue.join()` returns when `task_done()` was called once for every item. Where nobody calls it, or where an exception
in between skips it and ends the worker, the join waits for ever.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.graph import may_raise
from paceline.check.marks import Mark
from paceline.check.names import inside, parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts, in_loop


def find(facts: Facts) -> Iterator[Finding]:
    joins = [
        (fn, mark)
        for fn in facts.module.functions
        for mark in facts.walker.marks(fn)
        if mark.kind == "wait"
        and mark.waits_for == "every item to be marked done"
        and not isinstance(mark.node, ast.Name)
    ]
    if not joins:
        return
    done = [(fn, c) for fn in facts.module.functions for c in fn.calls if getattr(c.func, "attr", "") == "task_done"]
    for fn, mark in joins:
        assert mark.resource is not None
        if not done and any(_is_get(m, mark) for f in facts.module.functions for m in facts.walker.marks(f)):
            yield _tell_never(fn, mark)
    told: set[int] = set()
    for fn, call in done:
        if id(fn) not in told and _skipped(fn, call, facts):
            told.add(id(fn))
            yield _tell_skipped(fn, call, joins[0][1])


def _is_get(mark: Mark, join: Mark) -> bool:
    return (
        mark.resource is not None
        and join.resource is not None
        and mark.resource.id == join.resource.id
        and mark is not join
    )


def _skipped(fn: Function, call: ast.Call, facts: Facts) -> bool:
    """Between get and task_done something may raise, nothing catches it, and no `finally` marks the item."""
    gets = [
        m
        for m in facts.walker.marks(fn)
        if m.kind == "wait" and m.waits_for == "somebody to put an item" and m.line < call.lineno
    ]
    if not gets or not in_loop(call, fn) or inside(call, ast.ExceptHandler):
        return False
    at: ast.AST | None = call
    while at is not None and at is not fn.node and not isinstance(at, ast.While | ast.For):
        if isinstance(parent(at), ast.Try):
            return False
        at = parent(at)
    others = [c for c in fn.calls if gets[-1].line < c.lineno < call.lineno and may_raise(c) and in_loop(c, fn)]
    return any(inside(c, ast.Try) is None for c in others)


def _tell_never(fn: Function, mark: Mark) -> Finding:
    assert mark.resource is not None
    return finding(
        mark.node,
        fn,
        f"{mark.resource.id}.join() waits until every item is marked done, and nothing in this file calls task_done()",
        [
            Step("thread A", mark.line, f"waits for every item of {mark.resource.id} to be marked done"),
            Step("thread B", mark.line, "takes the items, and marks none"),
        ],
        "call task_done() after each item, in a `finally`",
        mark.resource.id,
        0.75,
    )


def _tell_skipped(fn: Function, call: ast.Call, join: Mark) -> Finding:
    return finding(
        call,
        fn,
        "an exception between get() and this task_done() ends the worker and leaves the item unmarked; "
        f"join() at line {join.line} then waits for ever",
        [
            Step("thread B", call.lineno, f"{fn.qualname} raises before it marks the item, and ends"),
            Step("thread A", join.line, "waits for every item to be marked done"),
        ],
        "call task_done() in a `finally`, and catch what one item may raise",
        "task_done",
        0.6,
    )


RULE = Rule(
    "PC203",
    "task-not-done",
    "a queue joined whose items are not always marked done",
    find,
    bad="""
        import queue
        import threading

        items = queue.Queue()

        def work():
            while True:
                item = items.get()
                item.run()
                items.task_done()

        threading.Thread(target=work, daemon=True).start()
        items.join()
    """,
    good="""
        import queue
        import threading

        items = queue.Queue()

        def work():
            while True:
                item = items.get()
                try:
                    item.run()
                finally:
                    items.task_done()

        threading.Thread(target=work, daemon=True).start()
        items.join()
    """,
    needs=("join",),
)
