"""An event that is not set when the work before it fails.

A thread works and then sets an event that others wait for, without a timeout. When the work raises, the thread ends,
the event stays as it is, and they wait for ever. Set it in a `finally`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.graph import may_raise
from paceline.check.marks import Mark
from paceline.check.names import inside, last, parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts, in_loop


def find(facts: Facts) -> Iterator[Finding]:
    waits: dict[str, tuple[Function, Mark]] = {}
    for fn in facts.module.functions:
        for mark in facts.walker.marks(fn):
            if mark.kind == "wait" and not mark.timeout and mark.resource is not None and mark.resource.kind == "Event":
                waits.setdefault(mark.resource.id, (fn, mark))
    if not waits:
        return
    for root in facts.roots:
        fn = root.function
        if root.kind != "thread":
            continue
        for call in fn.calls:
            if (
                last(call.func) != "set"
                or not isinstance(call.func, ast.Attribute)
                or inside(call, ast.Try, ast.If)
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
            before = [c for c in fn.calls if c.lineno < call.lineno and may_raise(c) and inside(c, ast.Try) is None]
            if before and isinstance(parent(call), ast.Expr):
                yield _tell(fn, call, found.id, before[0], waits[found.id])


def _set_elsewhere(event: str, call: ast.Call, facts: Facts) -> bool:
    for fn in facts.module.functions:
        for other in fn.calls:
            if other is not call and last(other.func) == "set" and isinstance(other.func, ast.Attribute):
                found = facts.module.resource(other.func.value, fn)
                if found is not None and found.id == event:
                    return True
    return False


def _tell(fn: Function, call: ast.Call, event: str, work: ast.Call, waiter: tuple[Function, Mark]) -> Finding:
    other, mark = waiter
    return finding(
        call,
        fn,
        f"{event} is set only when everything before it went well; if line {work.lineno} raises, "
        f"{other.qualname} waits for it for ever (line {mark.line})",
        [
            Step("thread B", work.lineno, f"{fn.qualname} raises, and ends"),
            Step("thread A", mark.line, f"{other.qualname} waits for {event}, which nobody sets"),
        ],
        "set it in a `finally`, and hand the exception on",
        event,
        0.6,
    )


RULE = Rule(
    "PC209",
    "never-set",
    "an event that is not set when the work before it fails",
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
