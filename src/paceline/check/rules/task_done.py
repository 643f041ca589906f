"""A queue that is joined although items may never be marked done.

`Queue.join()` returns when `task_done()` was called once for every item. Where it is never called, or where an
exception skips the call and ends the worker, the join waits for ever.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.catalogue import ITEMS_DONE, PUT_ITEM
from paceline.check.declarations import Function
from paceline.check.effects import Effect
from paceline.check.findings import Finding, Step
from paceline.check.graph import may_raise
from paceline.check.names import enclosing, parent
from paceline.check.roots import in_loop
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    """Report joins of queues without any task_done(), and task_done() calls that an exception may skip."""
    joins = [
        (fn, effect)
        for fn in facts.module.functions
        for effect in facts.walker.effects(fn)
        if effect.kind == "wait" and effect.waits_for == ITEMS_DONE and not isinstance(effect.node, ast.Name)
    ]
    if not joins:
        return
    done = [(fn, c) for fn in facts.module.functions for c in fn.calls if getattr(c.func, "attr", "") == "task_done"]
    for fn, effect in joins:
        assert effect.resource is not None
        if not done and any(_is_get(m, effect) for f in facts.module.functions for m in facts.walker.effects(f)):
            yield _report_never(fn, effect)
    reported: set[int] = set()
    for fn, call in done:
        if id(fn) not in reported and _skipped(fn, call, facts):
            reported.add(id(fn))
            yield _report_skipped(fn, call, joins[0][1])


def _is_get(effect: Effect, join: Effect) -> bool:
    return (
        effect.resource is not None
        and join.resource is not None
        and effect.resource.id == join.resource.id
        and effect is not join
    )


def _skipped(fn: Function, call: ast.Call, facts: Facts) -> bool:
    """Whether a call between get() and task_done() may raise uncaught, and no `finally` marks the item as done."""
    gets = [
        m for m in facts.walker.effects(fn) if m.kind == "wait" and m.waits_for == PUT_ITEM and m.line < call.lineno
    ]
    if not gets or not in_loop(call, fn) or enclosing(call, ast.ExceptHandler):
        return False
    at: ast.AST | None = call
    while at is not None and at is not fn.node and not isinstance(at, ast.While | ast.For):
        if isinstance(parent(at), ast.Try):
            return False
        at = parent(at)
    others = [c for c in fn.calls if gets[-1].line < c.lineno < call.lineno and may_raise(c) and in_loop(c, fn)]
    return any(enclosing(c, ast.Try) is None for c in others)


def _report_never(fn: Function, effect: Effect) -> Finding:
    assert effect.resource is not None
    return finding(
        effect.node,
        fn,
        f"{effect.resource.id}.join() waits until every item is marked done, but this file never calls task_done()",
        [
            Step("thread A", effect.line, f"waits for every item of {effect.resource.id} to be marked done"),
            Step("thread B", effect.line, "takes the items and marks none as done"),
        ],
        "call task_done() after each item, in a `finally`",
        effect.resource.id,
        0.75,
    )


def _report_skipped(fn: Function, call: ast.Call, join: Effect) -> Finding:
    return finding(
        call,
        fn,
        "an exception between get() and this task_done() ends the worker before the item is marked done; "
        f"join() at line {join.line} then waits for ever",
        [
            Step("thread B", call.lineno, f"{fn.qualname} raises before it marks the item as done, and ends"),
            Step("thread A", join.line, "waits for every item to be marked done"),
        ],
        "call task_done() in a `finally`, and catch the exceptions of a single item",
        "task_done",
        0.6,
    )


RULE = Rule(
    "PC203",
    "task-not-done",
    "a queue that is joined although items may never be marked done",
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
