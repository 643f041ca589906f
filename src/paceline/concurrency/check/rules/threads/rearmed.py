"""A timer that is cancelled while it fires, and still starts the next one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted, keyword


def find(facts: Facts) -> Iterator[Witness]:
    """Report cancellations of timers that renew themselves without asking for anything that the canceller sets."""
    for cls in facts.module.classes.values():
        for name, values in cls.values.items():
            for value, starter in values:
                fires = _fires(value, starter, facts)
                if fires is None or fires.cls not in cls.ancestry or not _renews(fires, starter, facts):
                    continue
                for fn in cls.methods.values():
                    cancel = next((c for c in fn.calls if dotted(c.func) == f"{fn.self_name}.{name}.cancel"), None)
                    if cancel is not None and fn not in (fires, starter) and not _asked(fn, (fires, starter), cls):
                        yield Witness(cancel, fn, fires=fires, starter=starter)


def _fires(value: ast.expr, starter: Function, facts: Facts) -> Function | None:
    """The function that a timer runs which is made here."""
    if not isinstance(value, ast.Call) or facts.module.canonical(value.func) != "threading.Timer":
        return None
    function = keyword(value, "function", 1)
    return facts.module.function_named(function, starter) if function is not None else None


def _renews(fires: Function, starter: Function, facts: Facts) -> bool:
    """Whether the function of a timer starts the next one."""
    return fires is starter or any(e.callee is starter for e in facts.walker.effects(fires))


def _asked(cancels: Function, renewing: tuple[Function, ...], cls: Class) -> bool:
    """Whether the functions that renew a timer ask for something that the canceller sets."""
    sets = {t.attr for t, _ in cancels.assigns if isinstance(t, ast.Attribute)}
    sets |= {c.func.value.attr for c in cancels.calls if _changes(c)}  # type: ignore[attr-defined]
    tests = [n for fn in renewing for test in fn.tests for n in ast.walk(test.test)]
    return any(isinstance(n, ast.Attribute) and n.attr in sets for n in tests)


def _changes(call: ast.Call) -> bool:
    """Whether this sets or clears an event."""
    method = call.func
    if not isinstance(method, ast.Attribute):
        return False
    return method.attr in ("set", "clear") and isinstance(method.value, ast.Attribute)
