"""Futures whose waiters get two answers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    dotted,
    enclosing,
    keyword,
    short_name,
)
from paceline.concurrency.check.threads.shared_state import is_caught
from paceline.concurrency.check.values.sources import TAKES, attribute_of, makes_future, parts

SETS = ("set_result", "set_exception")
ASKS = ("done", "cancelled")
GIVES_UP = {"wait_for", "timeout", "cancel", "wait", "move_on_after", "fail_after"}


def future_set_twice(facts: Facts) -> Iterator[Witness]:
    """Report set_result and set_exception of futures that wait in a container, without a check."""
    module = facts.module
    if "asyncio" not in {origin.partition(".")[0] for origin in module.imports.values()}:
        return
    for fn in module.functions:
        reported: set[str] = set()
        for call in fn.calls:
            if short_name(call.func) not in SETS or not isinstance(call.func, ast.Attribute):
                continue
            name = dotted(call.func.value)
            if name in reported or _asked(name, call, fn) or is_caught(call, "InvalidStateError"):
                continue
            waits = _waits(call.func.value, fn) and (_given_up(facts) or _completed_by_others(call.func.value, fn))
            if waits or _awaited(call.func.value, fn):
                reported.add(name)
                yield Witness(call, fn, name=name)


def _waits(node: ast.expr, fn: Function) -> bool:
    """Whether a future comes out of a container or attribute of the object, where its waiter has left it."""
    value = fn.bound.get(node.id) if isinstance(node, ast.Name) else node
    if isinstance(value, ast.Call):
        return short_name(value.func) in TAKES and dotted(value.func).startswith(f"{fn.self_name}.") and bool(fn.cls)
    if isinstance(value, ast.Subscript):
        return dotted(value.value).startswith(f"{fn.self_name}.") and bool(fn.cls)
    looped = fn.looped.get(node.id) if isinstance(node, ast.Name) else None
    return looped is not None and dotted(looped).startswith(f"{fn.self_name}.") and bool(fn.cls)


def _completed_by_others(node: ast.expr, fn: Function) -> bool:
    """Whether a future stays in its container when it is completed, and another method completes those in there."""
    attribute = attribute_of(node, fn)
    container = f"{fn.self_name}.{attribute}"
    takes = [
        c for c in fn.calls if dotted(c.func) in (f"{container}.pop", f"{container}.popleft", f"{container}.remove")
    ]
    deletes = [s for s in fn.subscripts if dotted(s.value) == container and isinstance(s.ctx, ast.Del)]
    if not attribute or takes or deletes or fn.cls is None:
        return False
    others = [(m, c) for m in fn.cls.methods.values() if m is not fn for c in m.calls]
    return any(
        isinstance(c.func, ast.Attribute)
        and c.func.attr in (*SETS, "cancel")
        and attribute_of(c.func.value, m) == attribute
        for m, c in others
    )


def _awaited(node: ast.expr, fn: Function) -> bool:
    """Whether this comes from an attribute with futures that coroutines await, whose tasks may be cancelled.

    That a coroutine takes its future away when it is cancelled is no help: others run between `cancel()` and its turn.
    """
    if fn.cls is None or not fn.self_name:
        return False
    attribute = attribute_of(node, fn)
    others = [m for m in fn.cls.methods.values() if m is not fn]
    if not attribute or any(_awaits(attribute, m) for m in others):
        return bool(attribute)
    return any(_keeps(attribute, m) for m in others) and any(_gives_up(attribute, m) for m in others)


def _keeps(attribute: str, fn: Function) -> bool:
    """Whether a method makes a future and stores it in this attribute, possibly beside something else."""
    futures = {dotted(t) for t, v in fn.assigns if makes_future(v)}
    stored = [v for t, v in fn.assigns if dotted(t) == f"{fn.self_name}.{attribute}"]
    return any(dotted(part) in futures or makes_future(part) for v in stored for part in parts(v))


def _gives_up(attribute: str, fn: Function) -> bool:
    """Whether a coroutine waits with a timeout for what this attribute holds."""
    calls = [a.value for a in fn.awaits if isinstance(a.value, ast.Call) and a.value.args]
    timed = [c for c in calls if short_name(c.func) == "wait_for" or keyword(c, "timeout") is not None]
    return any(isinstance(c.args[0], ast.Name) and attribute_of(c.args[0], fn) == attribute for c in timed)


def _awaits(attribute: str, fn: Function) -> bool:
    """Whether a coroutine makes a future, keeps it in this attribute, and awaits it."""
    container = f"{fn.self_name}.{attribute}"
    values = fn.cls.values.get(attribute, ()) if fn.cls is not None else ()
    names = {dotted(t) for t, v in fn.assigns if makes_future(v)} | {container for v, _ in values if makes_future(v)}
    names |= {dotted(t) for t, v in fn.assigns if dotted(v) == container and container in names}
    stored = [v for t, v in fn.assigns if dotted(t) in (container, f"{container}[]")]
    put = {dotted(part) for v in stored for part in parts(v)}
    put |= {
        dotted(c.args[0]) for c in fn.calls if c.args and dotted(c.func) in (f"{container}.append", f"{container}.add")
    }
    if container not in names and not names & put:
        return False
    return any(dotted(a.value) in names or _timed(a.value, names) for a in fn.awaits)


def _timed(node: ast.expr, names: set[str]) -> bool:
    """Whether this is `wait_for(future, seconds)`."""
    return isinstance(node, ast.Call) and short_name(node.func) == "wait_for" and dotted(node.args[0]) in names


def _asked(name: str, call: ast.Call, fn: Function) -> bool:
    """Whether the function asks before the call whether the future is done."""
    is_checked = any(
        short_name(c.func) in ASKS and dotted(getattr(c.func, "value", c.func)) == name and c.lineno <= call.lineno
        for c in fn.calls
    )
    return is_checked or _suppressed(call)


def _suppressed(call: ast.Call) -> bool:
    around = enclosing(call, ast.With)
    return isinstance(around, ast.With) and any("suppress" in dotted(i.context_expr) for i in around.items)


def _given_up(facts: Facts) -> bool:
    """Whether this file makes futures of a loop, and waits with a timeout or cancels anything."""
    called = {short_name(c.func) for c, _ in facts.module.calls}
    return bool(called & {"create_future", "Future"}) and bool(called & GIVES_UP)
