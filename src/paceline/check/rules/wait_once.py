"""A condition that is waited for once.

`Condition.wait()` may return although what is waited for is not so: somebody else was faster, or the notification was
for something else; and when the notification came before the wait, it never returns. The condition belongs into a
`while` around the wait, or into `wait_for`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.names import inside
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts, in_loop


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        if fn.name.startswith("wait"):
            continue  # a wait of its own, which its callers put into a loop
        for mark in facts.walker.marks(fn):
            if mark.kind != "wait" or mark.waits_for != "somebody to notify" or mark.timeout or mark.resource is None:
                continue
            if any(in_loop(event.mark.node, caller) for caller, event in facts.callers.get(id(fn), ())):
                continue  # the caller's loop looks again
            call = mark.node
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Attribute)
            if call.func.attr != "wait" or not mark.resource.sure:
                continue
            if inside(call, ast.While, ast.For, ast.AsyncFor) is not None:
                if _asked_outside(call):
                    yield _outside(fn, call, mark.resource.id)
                continue
            yield finding(
                call,
                fn,
                f"{said(call)} is not in a loop that looks again: it may return too early, and waits for ever "
                "when the notification came before it",
                [
                    Step("thread B", mark.line, f"notifies {mark.resource.id} before anybody waits"),
                    Step("thread A", mark.line, f"{fn.qualname} waits for a notification that has been"),
                ],
                "wait in `while not <what is waited for>:`, or use wait_for()",
                mark.resource.id,
                0.75,
            )


def _asked_outside(call: ast.Call) -> bool:
    """The loop's question is asked before the condition is taken."""
    around = inside(call, ast.With, ast.AsyncWith, ast.While, ast.For, ast.AsyncFor)
    if not isinstance(around, ast.With | ast.AsyncWith) or len(around.body) != 1:
        return False
    loop = inside(around, ast.With, ast.AsyncWith, ast.While, ast.If)
    return isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)


def _outside(fn: Function, call: ast.Call, condition: str) -> Finding:
    loop = inside(call, ast.While)
    line = getattr(loop, "lineno", call.lineno)
    return finding(
        call,
        fn,
        f"what {said(call)} waits for is looked at (line {line}) before {condition} is taken: a notification "
        "in between is lost",
        [
            Step("thread A", line, f"{fn.qualname} looks: it must wait"),
            Step("thread B", call.lineno, f"changes it and notifies {condition}, where nobody waits yet"),
            Step("thread A", call.lineno, "waits for a notification that has been"),
        ],
        "take the condition around the whole loop",
        condition,
        0.75,
    )


RULE = Rule(
    "PC204",
    "wait-outside-loop",
    "a condition waited for once, without looking again",
    find,
    bad="""
        import threading

        ready = threading.Condition()
        items = []

        def take():
            with ready:
                if not items:
                    ready.wait()
                return items.pop()
    """,
    good="""
        import threading

        ready = threading.Condition()
        items = []

        def take():
            with ready:
                while not items:
                    ready.wait()
                return items.pop()
    """,
    needs=("wait",),
)
