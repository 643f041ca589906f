"""An event that is cleared after the flag it announces was checked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.libraries.catalogue import EVENTS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.syntax.tree import awaited, following, parent

DEPTH = 2


def find(facts: Facts) -> Iterator[Witness]:
    """Report loops that check a flag, then clear the event that announces it, then wait."""
    for fn in facts.module.functions:
        yield from _just_before(fn, facts)
        yield from _pulsed(fn, facts)
        yield from _after_work(fn, facts)
        for loop in fn.loops:
            if not isinstance(loop, ast.While):
                continue
            flags = {dotted(n) for n in ast.walk(loop.test) if isinstance(n, ast.Attribute | ast.Name)} - {
                fn.self_name,
                "",
            }
            steps = list(_in_order(loop, fn, facts, 0))
            for index, (call, where) in enumerate(steps):
                if not _is(call, "wait"):
                    continue
                event = _event(call, where, facts)
                clear = next(
                    (s for s in reversed(steps[:index]) if _is(s[0], "clear") and _event(*s, facts) == event), None
                )
                if event is None or clear is None or any(_is(s[0], "wait") for s in steps[: steps.index(clear)]):
                    continue
                if fn.asynchronous and clear[1] is fn and not _gives_way(fn, loop, clear[0]):
                    continue
                setter = _setter(event, flags, facts)
                if setter is not None and not _checked_again(loop, clear[0], call, setter[1], where, clear[1]):
                    yield Witness(clear[0], clear[1], event=event, setter=setter, loop=loop, wait=call, caller=fn)


def _gives_way(fn: Function, loop: ast.While, clear: ast.Call) -> bool:
    """Whether a coroutine lets others run between the test of a loop and the clear."""
    lines = [a.lineno for a in fn.awaits] + [w.lineno for w in fn.withs if isinstance(w, ast.AsyncWith)]
    return any(loop.lineno < line < clear.lineno for line in lines)


def _just_before(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`event.clear()` directly before `event.wait()` in a loop: an event set while the loop worked is lost."""
    for loop in fn.loops:
        if not isinstance(loop, ast.While):
            continue
        for first, second in pairwise(loop.body):
            clear, wait = _call_of(first), _call_of(second)
            if clear is None or wait is None or not _is(clear, "clear") or not _is(wait, "wait"):
                continue
            event = _event(clear, fn, facts)
            if event is None or event != _event(wait, fn, facts) or has_timeout(wait, "wait"):
                continue
            asks = not isinstance(loop.test, ast.Constant) and loop.body[0] is first
            if asks and fn.asynchronous:
                continue  # nothing comes between the test of the loop and the wait
            setter = next(
                (
                    (f, c)
                    for f in facts.module.functions
                    for c in f.calls
                    if f is not fn and _is(c, "set") and _event(c, f, facts) == event
                ),
                None,
            )
            if setter is not None:
                yield Witness(clear, fn, "announced", event=event, wait=wait, setter=setter)


def _pulsed(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`event.set()` directly before `event.clear()`: only a thread that waits at this moment notices."""
    for call in fn.calls:
        statement = parent(call)
        after = following(statement) if isinstance(statement, ast.Expr) and _is(call, "set") else []
        clear = _call_of(after[0]) if after else None
        if clear is None or not _is(clear, "clear"):
            continue
        event = _event(call, fn, facts)
        if event is None or _event(clear, fn, facts) != event:
            continue
        waits = (
            (c, f) for f in facts.module.functions for c in f.calls if _is(c, "wait") and not has_timeout(c, "wait")
        )
        waiter = next(((c, f) for c, f in waits if f is not fn and _event(c, f, facts) == event), None)
        if waiter is not None:
            yield Witness(clear, fn, "pulse", event=event, waiter=waiter[1], wait=waiter[0], sets=call)


def _after_work(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`wait()`, then the work, then `clear()`: what was announced after the work was taken is forgotten."""
    for loop in fn.loops:
        if not isinstance(loop, ast.While):
            continue
        calls = [c for s in loop.body for c in ast.walk(s) if isinstance(c, ast.Call)]
        clears = [c for c in calls if _is(c, "clear") and (event := _event(c, fn, facts)) is not None]
        for clear in clears:
            event = _event(clear, fn, facts)
            waits = [c for c in [*ast.walk(loop.test), *calls] if isinstance(c, ast.Call) and _is(c, "wait")]
            waits = [c for c in waits if _event(c, fn, facts) == event]
            if event is None or not waits or waits[0].lineno > clear.lineno or has_timeout(waits[0], "wait"):
                continue
            used = {
                (dotted(n), n.lineno)
                for n in ast.walk(loop)
                if isinstance(n, ast.Attribute | ast.Name) and n.lineno > waits[0].lineno
            }
            done = {name for name, line in used if line < clear.lineno} - {n for n, line in used if line > clear.lineno}
            done -= {dotted(n) for n in ast.walk(loop.test) if isinstance(n, ast.Attribute | ast.Name)}
            change = next((c for c in _changes(event, done, fn, facts)), None)
            if change is not None:
                yield _forgotten(fn, waits[0], clear, event, *change)


def _changes(event: str, names: set[str], fn: Function, facts: Facts) -> Iterator[tuple[Function, ast.Call, str]]:
    """The functions that change one of these attributes and then set the event."""
    for other in facts.module.functions:
        sets = [c for c in other.calls if other is not fn and _is(c, "set") and _event(c, other, facts) == event]
        changed = [t for t, _ in other.assigns] + [c.func.value for c in other.calls if _adds(c)]  # type: ignore[attr-defined]
        for name in (dotted(t) for t in changed if sets and t.lineno <= sets[0].lineno):
            if name in names and "." in name:
                yield other, sets[0], name


def _adds(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "appendleft", "add", "put", "update")


def _forgotten(
    fn: Function, wait: ast.Call, clear: ast.Call, event: str, other: Function, sets: ast.Call, name: str
) -> Witness:
    return Witness(clear, fn, "forgotten", event=event, name=name, other=other, wait=wait, sets=sets)


def _call_of(statement: ast.stmt) -> ast.Call | None:
    value = awaited(statement.value) if isinstance(statement, ast.Expr | ast.Assign) else None
    return value if isinstance(value, ast.Call) else None


def _in_order(node: ast.AST, fn: Function, facts: Facts, depth: int) -> Iterator[tuple[ast.Call, Function]]:
    """The calls of a loop in the order of its lines, with those of its callees in their place."""
    inside = {id(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
    for effect in facts.walker.effects(fn):
        if id(effect.node) in inside and isinstance(effect.node, ast.Call):
            if effect.callee is not None and depth < DEPTH:
                yield from _in_order(effect.callee.node, effect.callee, facts, depth + 1)
            yield effect.node, fn


def _is(call: ast.Call, method: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == method


def _event(call: ast.Call, fn: Function, facts: Facts) -> str | None:
    assert isinstance(call.func, ast.Attribute)
    resource = facts.module.resource(call.func.value, fn)
    return resource.id if resource is not None and resource.kind in EVENTS else None


def _setter(event: str, flags: set[str], facts: Facts) -> tuple[Function, str, ast.Call] | None:
    """A function that changes a flag of the loop and then sets the event, without a lock around both."""
    for fn in facts.module.functions:
        if fn.name == "__init__":
            continue
        for call in fn.calls:
            if _is(call, "set") and _event(call, fn, facts) == event and not facts.held_at(call, fn):
                for target, _ in fn.assigns:
                    if dotted(target) in flags and target.lineno <= call.lineno:
                        return fn, dotted(target), call
    return None


def _checked_again(
    loop: ast.While, clear: ast.Call, wait: ast.Call, flag: str, fn: Function, clearing: Function
) -> bool:
    """Whether the flag is checked again between the clear and the wait."""
    first = clear.lineno if clearing is fn else loop.lineno + 1
    return any(
        isinstance(n, ast.Attribute | ast.Name) and dotted(n) == flag and first < n.lineno <= wait.lineno
        for n in ast.walk(loop)
    ) or (clearing is not fn and any(dotted(a) == flag and a.lineno > clear.lineno for a in clearing.attributes))
