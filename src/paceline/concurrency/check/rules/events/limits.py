"""Timeouts whose outcome is ignored, and limits that do not limit."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.libraries.catalogue import THREAD_EVENTS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, short_name
from paceline.concurrency.check.syntax.tree import enclosing, parent
from paceline.concurrency.check.values.bindings import start_arguments

ASKS = ("is_alive", "exitcode", "terminate", "kill")


def timeout_unnoticed(facts: Facts) -> Iterator[Witness]:
    """Report waits whose result is dropped, before a use of what the setter of the event has stored."""
    for fn in facts.module.functions:
        yield from _joined(fn, facts)
        for call in fn.calls:
            if not _unnoticed(call, fn, facts):
                continue
            read = _used(call, fn)
            setter = _stores(read, call, fn, facts) if read is not None else None
            if read is not None and setter is not None:
                yield Witness(call, fn, read=read, setter=setter)
                break


def _joined(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`child.join(60)`, and then a use of what the child was given, whether or not it has ended."""
    for target, value in fn.assigns:
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Call):
            continue
        if facts.module.constructed_kind(value, fn) not in ("Process", "Thread"):
            continue
        parts = (n for argument in start_arguments(value, fn) for n in ast.walk(argument))
        names = {n.id for n in parts if isinstance(n, ast.Name)} - {fn.self_name}
        join = next((c for c in fn.calls if dotted(c.func) == f"{target.id}.join" and has_timeout(c, "join")), None)
        is_checked = any(dotted(a) in [f"{target.id}.{how}" for how in ASKS] for a in fn.attributes)
        if join is None or is_checked or not isinstance(parent(join), ast.Expr):
            continue
        later = (n for n in fn.names if n.id in names and n.lineno > join.lineno and n.id != target.id)
        used = next((n for n in later if isinstance(enclosing(n, ast.Call), ast.Call)), None)
        if used is not None:
            yield Witness(join, fn, "joined", used=used)


def _unnoticed(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether this waits for an event with a timeout, outside a loop, and drops what the wait returns."""
    if short_name(call.func) != "wait" or not isinstance(call.func, ast.Attribute) or not has_timeout(call, "wait"):
        return False
    dropped = isinstance(parent(call), ast.Expr) and enclosing(call, ast.While, ast.For) is None
    event = call.func.value
    resource = facts.module.resource(event, fn) if dropped else None
    if resource is not None:
        return resource.kind in THREAD_EVENTS
    key = event.slice if isinstance(event, ast.Subscript) else None
    return dropped and isinstance(key, ast.Constant) and _is_event(key.value, facts)


def _is_event(key: object, facts: Facts) -> bool:
    """Whether some dictionary of this file has an event under a key."""
    dicts = (n for fn in facts.module.functions for c in fn.calls if isinstance(n := parent(c), ast.Dict))
    return any(
        is_constant(k, key) and isinstance(v, ast.Call) and short_name(v.func) == "Event"
        for n in dicts
        for k, v in zip(n.keys, n.values, strict=True)
    )


def _used(call: ast.Call, fn: Function) -> ast.expr | None:
    """What is returned after the wait: an attribute or item that nothing has tested since."""
    later = [r for r in fn.returns if r.value is not None and r.lineno > call.lineno]
    read = later[0].value if later else None
    if not isinstance(read, ast.Attribute | ast.Subscript) or not dotted(read).strip("[]"):
        return None
    text = ast.unparse(read)
    tests = [t.test for t in fn.tests if t.lineno > call.lineno]
    event = ast.unparse(call.func.value)  # type: ignore[attr-defined]
    is_checked = any(part in ast.unparse(test) for test in tests for part in (text, event))
    return None if is_checked or enclosing(later[0], ast.If) is not enclosing(call, ast.If) else read


def _stores(read: ast.expr, call: ast.Call, fn: Function, facts: Facts) -> Function | None:
    """Another function that stores what is read, and then sets an event of the same object."""
    name = _last(read)
    event = _last(call.func.value)  # type: ignore[attr-defined]
    for other in facts.module.functions:
        sets = [c for c in other.calls if short_name(c.func) == "set" and _last(getattr(c.func, "value", c)) == event]
        stored = [t for t, _ in other.assigns if isinstance(t, ast.Attribute | ast.Subscript) and _last(t) == name]
        if other is not fn and any(s.lineno <= c.lineno for s in stored for c in sets):
            return other
    return None


def _last(node: ast.expr) -> object:
    """The attribute or the constant key at the end of an expression."""
    if isinstance(node, ast.Subscript):
        return node.slice.value if isinstance(node.slice, ast.Constant) else ""
    return short_name(node)


STARTS = ("submit", "apply_async", "start")
WAITS = ("result", "join", "get", "wait", "map", "as_completed", "run")


def slot_freed(facts: Facts) -> Iterator[Witness]:
    """Report blocks of a semaphore that start a task and wait for nothing."""
    for fn in facts.module.functions:
        for block in fn.withs:
            slots = facts.module.resource(block.items[0].context_expr, fn) if isinstance(block, ast.With) else None
            if slots is None or slots.kind != "Semaphore" or not slots.sure:
                continue
            calls = [n for s in block.body for n in ast.walk(s) if isinstance(n, ast.Call)]
            start = next((c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in STARTS), None)
            if start is not None and not any(short_name(c.func) in WAITS for c in calls):
                yield Witness(start, fn, slots=slots.id)
