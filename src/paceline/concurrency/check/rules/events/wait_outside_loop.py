"""A condition that is waited for outside a loop.

`Condition.wait()` may return although the awaited state does not hold: another thread was faster, or the notification
was meant for something else; and if the notification came before the wait, it never returns. The state must be checked
in a `while` around the wait, or with `wait_for`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import NOTIFY
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing, parent
from paceline.concurrency.check.threads.accesses import SHRINKS
from paceline.concurrency.check.threads.roots import in_loop


def find(facts: Facts) -> Iterator[Finding]:
    """Report waits for a condition that neither the function nor its callers repeat in a loop."""
    for fn in facts.module.functions:
        calls = [(caller, event.effect.node) for caller, event in facts.callers.get(id(fn), ())]
        if fn.name.startswith("wait") and (not calls or any(in_loop(node, caller) for caller, node in calls)):
            continue  # its callers put it into a loop
        for effect in facts.walker.effects(fn):
            if effect.kind != "wait" or effect.waits_for != NOTIFY or effect.timeout or effect.resource is None:
                continue
            call = effect.node
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Attribute)
            if call.func.attr != "wait" or not effect.resource.sure:
                continue
            loops = [event for caller, event in facts.callers.get(id(fn), ()) if in_loop(event.effect.node, caller)]
            if loops and not _unchecked(call) and not _acts(call):
                continue  # the loop of the caller checks again
            if enclosing(call, ast.While, ast.For, ast.AsyncFor) is not None:
                if _checked_outside(call):
                    yield _outside(fn, call, effect.resource.id)
                continue
            yield finding(
                call,
                fn,
                f"{text_of(call)} is not in a loop that checks again: it may return too early, and waits for ever "
                "if the notification came before it",
                [
                    Step("thread B", effect.line, f"notifies {effect.resource.id} before any thread waits"),
                    Step("thread A", effect.line, f"{fn.qualname} waits for a notification that has already been sent"),
                ],
                remedy="wait in a `while` loop that checks the awaited state, or use wait_for()",
                about=effect.resource.id,
                confidence=0.5 if loops else 0.75,
            )


def _checked_outside(call: ast.Call) -> bool:
    """Whether the loop checks the state before it takes the condition."""
    around = enclosing(call, ast.With, ast.AsyncWith, ast.While, ast.For, ast.AsyncFor)
    if not isinstance(around, ast.With | ast.AsyncWith) or len(around.body) != 1:
        return False
    loop = enclosing(around, ast.With, ast.AsyncWith, ast.While, ast.If)
    return isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)


def _acts(call: ast.Call) -> bool:
    """Whether the function takes something away right after the wait, whatever its caller checks."""
    test = enclosing(call, ast.With, ast.AsyncWith, ast.While, ast.If)
    around = parent(test) if isinstance(test, ast.If) else None
    if not isinstance(around, ast.With | ast.AsyncWith) or test not in around.body:
        return False
    after = around.body[around.body.index(test) + 1 :]
    return any(isinstance(n, ast.Call) and short_name(n.func) in SHRINKS for s in after for n in ast.walk(s))


def _unchecked(call: ast.Call) -> bool:
    """Whether the function takes the condition itself, and then waits without a look at any state."""
    around = enclosing(call, ast.With, ast.AsyncWith, ast.While, ast.For, ast.If)
    return isinstance(around, ast.With | ast.AsyncWith) and len(around.body) == 1


def _outside(fn: Function, call: ast.Call, condition: str) -> Finding:
    loop = enclosing(call, ast.While)
    line = getattr(loop, "lineno", call.lineno)
    return finding(
        call,
        fn,
        f"the state that {text_of(call)} waits for is checked (line {line}) before {condition} is taken: a "
        "notification in between is lost",
        [
            Step("thread A", line, f"{fn.qualname} checks: it must wait"),
            Step("thread B", call.lineno, f"changes the state and notifies {condition}, for which no thread waits yet"),
            Step("thread A", call.lineno, "waits for a notification that has already been sent"),
        ],
        remedy="take the condition around the whole loop",
        about=condition,
        confidence=0.75,
    )


RULE = Rule(
    "PC204",
    "wait-outside-loop",
    "a condition waited for outside a loop",
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
