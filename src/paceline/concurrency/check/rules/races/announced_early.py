"""An event that is set before the state which it announces."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import THREAD_EVENTS
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import following, parent
from paceline.concurrency.check.threads.shared_state import BEGINNINGS

Place = tuple[Function, ast.Call]


def find(facts: Facts) -> Iterator[Witness]:
    """Report attributes that are assigned after an event is set, and read by what waits for the event."""
    sets, waits = _calls("set", facts), _calls("wait", facts)
    for event in sets.keys() & waits.keys():
        for fn, call in sets[event]:
            witness = next((f for w in waits[event] if (f := _late(fn, call, *w)) is not None), None)
            if witness is not None and not facts.held_at(call, fn):
                yield _report(fn, call, event, *witness)


def _calls(method: str, facts: Facts) -> dict[str, list[Place]]:
    """Event -> where it is set, or waited for."""
    places: dict[str, list[Place]] = {}
    for fn in facts.module.functions:
        for call in fn.calls:
            event = resource_of(call, (method,), fn, facts)
            if event is not None and event.kind in THREAD_EVENTS and not event.one_of_several:
                places.setdefault(event.id, []).append((fn, call))
    return places


def _late(
    fn: Function, call: ast.Call, waiter: Function, wait: ast.Call
) -> tuple[ast.expr, Function, ast.Attribute] | None:
    """An attribute that is assigned only after the event is set, and where the waiter reads it."""
    if fn is waiter or fn.cls is None or fn.cls is not waiter.cls:
        return None
    statement = parent(call)
    after = following(statement) if isinstance(statement, ast.Expr) else []
    targets = [t for s in after if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Attribute)]
    begun = any(short_name(c.func) == "start" and c.lineno < call.lineno for c in fn.calls)
    if fn.name in BEGINNINGS and not begun:
        return None  # no thread waits for it yet
    early = {dotted(t) for t, _ in fn.assigns if t.lineno < call.lineno}
    for target in targets:
        if dotted(target.value) != fn.self_name or dotted(target) in early:
            continue
        for read in waiter.attributes:
            on_self = dotted(read.value) == waiter.self_name and isinstance(read.ctx, ast.Load)
            if on_self and read.attr == target.attr and read.lineno > wait.lineno:
                return target, waiter, read
    return None


def _report(
    fn: Function, call: ast.Call, event: str, target: ast.expr, waiter: Function, read: ast.Attribute
) -> Witness:
    return Witness(target, fn, event=event, call=call, waiter=waiter, read=read)
