"""A blocking call inside a coroutine."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import parent

KINDS = (
    "Thread",
    "Process",
    "Queue",
    "ProcessQueue",
    "SimpleQueue",
    "Event",
    "ProcessEvent",
    "Barrier",
    "Future",
    "Executor",
    "Pool",
)


def find(facts: Facts) -> Iterator[Witness]:
    """Report blocking calls in coroutines and callbacks of the loop, and endless waits for resources of threads."""
    for fn in facts.module.functions:
        if not facts.on_loop(fn):
            continue
        yield from _blocking(fn, facts)
        for effect in facts.walker.effects(fn):
            resource = effect.resource
            if (
                effect.kind != "wait"
                or effect.timeout
                or resource is None
                or not resource.sure
                or resource.kind not in KINDS
            ):
                continue
            if isinstance(parent(effect.node), ast.Await) or _is_done(effect.node, fn.calls):
                continue
            yield Witness(effect.node, fn, place=place(fn), effect=effect, resource=resource)


def place(fn: Function) -> str:
    """What the loop runs, in words."""
    return "a coroutine" if fn.asynchronous else "a callback of the loop"


def _blocking(fn: Function, facts: Facts) -> Iterator[Witness]:
    """Calls of libraries that block, in a coroutine or in the functions that it calls."""
    reported: set[str] = set()
    for effect in facts.walker.effects(fn):
        if effect.kind != "call" or isinstance(parent(effect.node), ast.Await):
            continue
        for what, call in facts.blocks_through(effect, fn).items():
            if what in reported:
                continue
            reported.add(what)
            by = "" if len(call.steps) == 1 else f", which calls {what},"
            yield Witness(
                effect.node,
                fn,
                "blocking",
                confidence=0.45 if call.waits == "waits for the user" else 0.8 if len(call.steps) == 1 else 0.65,
                by=by,
                place=place(fn),
                call=call,
                what=what,
                effect=effect,
                function=text_of(effect.node)[:-2],
            )


def _is_done(node: ast.expr, calls: list[ast.Call]) -> bool:
    """Whether the function asks `done()` of the same future, so that the result is there."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name = ast.unparse(node.func.value)
    return any(
        isinstance(c.func, ast.Attribute) and c.func.attr == "done" and ast.unparse(c.func.value) == name for c in calls
    )
