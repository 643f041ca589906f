"""A queue that is checked for emptiness before a blocking `get()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect
from paceline.concurrency.check.libraries.catalogue import PUT_ITEM
from paceline.concurrency.check.rules.rule import Witness, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.threads.shared_state import BEGINNINGS


def find(facts: Facts) -> Iterator[Witness]:
    """Report blocking gets after a check of the same queue, in functions that workers run."""
    for fn in facts.module.functions:
        if not any(t.startswith(("thread:", "process:")) for t in facts.reached.get(id(fn), ())):
            if not fn.asynchronous and fn.cls is not None and fn.name not in BEGINNINGS:
                yield from _left_if_empty(fn, facts)
                yield from _emptied_beside(fn, facts)
            continue
        for effect in facts.walker.effects(fn):
            if effect.kind == "wait" and not effect.timeout and effect.waits_for == PUT_ITEM:
                test = _asked(effect, fn, facts)
                if test is not None and not facts.held_at(effect.node, fn):
                    yield Witness(effect.node, fn, line=test, effect=effect)


def _left_if_empty(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if self.items.empty(): return`, and later `self.items.get()`, of a queue for threads that the object keeps."""
    for test in fn.tests:
        asks = test.test if isinstance(test, ast.If) and isinstance(test.body[-1], ast.Return) else None
        if not isinstance(asks, ast.Call) or short_name(asks.func) != "empty":
            continue
        queue = queue_of(asks, ("empty",), fn, facts)
        gets = (e for e in facts.walker.effects(fn) if e.kind == "wait" and not e.timeout and e.line > test.lineno)
        get = next((e for e in gets if e.resource is not None and e.resource.id == queue and "." in queue), None)
        threads = get is not None and get.resource is not None and get.resource.kind == "Queue"
        if get is not None and threads and not facts.held_at(get.node, fn):
            yield Witness(get.node, fn, line=test.lineno, effect=get)


def _emptied_beside(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`while not self.items.empty(): self.items.get()` while a thread takes items from the same queue."""
    for effect in facts.walker.effects(fn):
        if effect.kind != "wait" or effect.timeout or effect.waits_for != PUT_ITEM or effect.resource is None:
            continue
        line = _asked(effect, fn, facts)
        if line is not None and not facts.held_at(effect.node, fn) and _taken_by_thread(effect.resource.id, facts):
            yield Witness(effect.node, fn, line=line, effect=effect)


def _taken_by_thread(queue: str, facts: Facts) -> bool:
    """Whether a thread takes items from a queue."""
    return any(
        queue_of(call, ("get", "get_nowait"), other, facts) == queue
        for other in facts.module.functions
        if facts.threads_of(other)
        for call in other.calls
    )


def _asked(effect: Effect, fn: Function, facts: Facts) -> int | None:
    """The line of the check around a get."""
    around = enclosing(effect.node, ast.While, ast.If)
    while isinstance(around, ast.While | ast.If):
        for node in ast.walk(around.test):
            if (
                isinstance(node, ast.Call)
                and short_name(node.func) in ("empty", "qsize", "full")
                and isinstance(node.func, ast.Attribute)
            ):
                resource = facts.module.resource(node.func.value, fn)
                if resource is not None and effect.resource is not None and resource.id == effect.resource.id:
                    return around.lineno
        around = enclosing(around, ast.While, ast.If)
    return None
