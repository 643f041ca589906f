"""A loop that waits for something that only a later turn of the same loop does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, Wait
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing, on_different_branches

DOES = {
    "AsyncEvent": ("set",),
    "AsyncQueue": ("put", "put_nowait"),
    "Event": ("set",),
    "Queue": ("put", "put_nowait"),
    "SimpleQueue": ("put",),
}
GETS = ("get", "wait")


def find(facts: Facts) -> Iterator[Witness]:
    """Report loops that wait, on a way through calls, for what only they do themselves, in another turn."""
    for fn in facts.module.functions:
        loops = [loop for loop in fn.loops if isinstance(loop, ast.While | ast.AsyncFor | ast.For)]
        for effect in facts.runs(fn) if loops else ():
            loop = enclosing(effect.node, ast.While, ast.AsyncFor, ast.For)
            if effect.callee is None or loop is None:
                continue
            witness = next(((w, d) for w in facts.waits(effect.callee).values() if (d := _does(w, fn, facts))), None)
            if witness is not None and any(_later(effect.node, does) for does in witness[1]):
                yield _report(fn, effect.node, *witness)
                return


def _does(wait: Wait, fn: Function, facts: Facts) -> list[ast.Call]:
    """The calls of a loop that do what is waited for; none where another function does it as well."""
    resource = wait.effect.resource
    method = short_name(getattr(wait.effect.node, "func", wait.effect.node))
    if resource is None or not resource.sure or resource.one_of_several or method not in GETS:
        return []
    calls: list[ast.Call] = []
    for other in facts.module.functions:
        for call in other.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in DOES.get(resource.kind, ()):
                continue
            receiver = facts.module.resource(call.func.value, other)
            if receiver is not None and receiver.id == resource.id:
                if other is not fn:
                    return []
                calls.append(call)
    return calls


def _later(waits: ast.expr, does: ast.Call) -> bool:
    """Whether a call does something only after another one returns, or in another turn of the loop."""
    loop = enclosing(waits, ast.While, ast.AsyncFor, ast.For)
    return loop is enclosing(does, ast.While, ast.AsyncFor, ast.For) and (
        on_different_branches(waits, does) or waits.lineno < does.lineno
    )


def _report(fn: Function, at: ast.expr, wait: Wait, does: list[ast.Call]) -> Witness:
    return Witness(at, fn, wait=wait, does=does, steps=((fn, at), *wait.steps))
