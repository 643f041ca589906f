"""An event that is not set when the work before it raises.

A thread works and then sets an event for which others wait without a timeout. If the work raises, the thread ends, the
event stays unset, and they wait for ever. Set it in a `finally`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declarations import Function
from paceline.check.effects import Effect
from paceline.check.findings import Finding, Step
from paceline.check.graph import may_raise
from paceline.check.names import enclosing, parent, short_name
from paceline.check.roots import in_loop
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    """Report `event.set()` at the end of a thread, after calls that may raise."""
    waits: dict[str, tuple[Function, Effect]] = {}
    for fn in facts.module.functions:
        for effect in facts.walker.effects(fn):
            if (
                effect.kind == "wait"
                and not effect.timeout
                and effect.resource is not None
                and effect.resource.kind == "Event"
            ):
                waits.setdefault(effect.resource.id, (fn, effect))
    if not waits:
        return
    for root in facts.roots:
        fn = root.function
        if root.kind != "thread":
            continue
        for call in fn.calls:
            if (
                short_name(call.func) != "set"
                or not isinstance(call.func, ast.Attribute)
                or enclosing(call, ast.Try, ast.If)
                or in_loop(call, fn)
            ):
                continue
            found = facts.module.resource(call.func.value, fn)
            if (
                found is None
                or found.id not in waits
                or waits[found.id][0] is fn
                or _set_elsewhere(found.id, call, facts)
            ):
                continue
            before = [c for c in fn.calls if c.lineno < call.lineno and may_raise(c) and enclosing(c, ast.Try) is None]
            if before and isinstance(parent(call), ast.Expr):
                yield _report(fn, call, found.id, before[0], waits[found.id])


def _set_elsewhere(event: str, call: ast.Call, facts: Facts) -> bool:
    """Whether the event is also set by another call."""
    for fn in facts.module.functions:
        for other in fn.calls:
            if other is not call and short_name(other.func) == "set" and isinstance(other.func, ast.Attribute):
                found = facts.module.resource(other.func.value, fn)
                if found is not None and found.id == event:
                    return True
    return False


def _report(fn: Function, call: ast.Call, event: str, work: ast.Call, waiter: tuple[Function, Effect]) -> Finding:
    other, effect = waiter
    return finding(
        call,
        fn,
        f"{event} is set only if everything before it succeeds; if line {work.lineno} raises, "
        f"{other.qualname} waits for it for ever (line {effect.line})",
        [
            Step("thread B", work.lineno, f"{fn.qualname} raises and ends"),
            Step("thread A", effect.line, f"{other.qualname} waits for {event}, which is never set"),
        ],
        "set it in a `finally`, and report the exception",
        event,
        0.6,
    )


RULE = Rule(
    "PC209",
    "never-set",
    "an event that is not set when the work before it raises",
    find,
    bad="""
        import threading

        ready = threading.Event()

        def load(source):
            source.read()
            ready.set()

        def run(source):
            threading.Thread(target=load, args=(source,)).start()
            ready.wait()
    """,
    good="""
        import threading

        ready = threading.Event()

        def load(source):
            try:
                source.read()
            finally:
                ready.set()

        def run(source):
            threading.Thread(target=load, args=(source,)).start()
            ready.wait()
    """,
    needs=("Event",),
)
