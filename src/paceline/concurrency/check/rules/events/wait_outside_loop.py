"""A condition that is waited for outside a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import NOTIFY
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing, parent
from paceline.concurrency.check.threads.accesses import SHRINKS
from paceline.concurrency.check.threads.roots import in_loop


def find(facts: Facts) -> Iterator[Witness]:
    """Report waits for a condition that neither the function nor its callers repeat in a loop."""
    for fn in facts.module.functions:
        calls = [(caller, event.effect.node) for caller, event in facts.callers.get(id(fn), ())]
        if fn.name.startswith("wait") and (not calls or any(in_loop(node, caller) for caller, node in calls)):
            continue  # its callers put it into a loop
        for effect in facts.walker.effects(fn):
            if effect.kind != "wait" or effect.waits_for != NOTIFY or effect.timeout or effect.resource is None:
                continue
            call = effect.node
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Attribute)
            if call.func.attr != "wait" or not effect.resource.sure:
                continue
            loops = [event for caller, event in facts.callers.get(id(fn), ()) if in_loop(event.effect.node, caller)]
            if loops and not _unchecked(call) and not _acts(call):
                continue  # the loop of the caller checks again
            if enclosing(call, ast.While, ast.For, ast.AsyncFor) is not None:
                if _checked_outside(call):
                    yield _outside(fn, call, effect.resource.id)
                continue
            yield Witness(call, fn, confidence=0.5 if loops else 0.75, effect=effect)


def _checked_outside(call: ast.Call) -> bool:
    """Whether the loop checks the state before it takes the condition."""
    around = enclosing(call, ast.With, ast.AsyncWith, ast.While, ast.For, ast.AsyncFor)
    if not isinstance(around, ast.With | ast.AsyncWith) or len(around.body) != 1:
        return False
    loop = enclosing(around, ast.With, ast.AsyncWith, ast.While, ast.If)
    return isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)


def _acts(call: ast.Call) -> bool:
    """Whether the function takes something away right after the wait, whatever its caller checks."""
    test = enclosing(call, ast.With, ast.AsyncWith, ast.While, ast.If)
    around = parent(test) if isinstance(test, ast.If) else None
    if not isinstance(around, ast.With | ast.AsyncWith) or test not in around.body:
        return False
    after = around.body[around.body.index(test) + 1 :]
    return any(isinstance(n, ast.Call) and short_name(n.func) in SHRINKS for s in after for n in ast.walk(s))


def _unchecked(call: ast.Call) -> bool:
    """Whether the function takes the condition itself, and then waits without a look at any state."""
    around = enclosing(call, ast.With, ast.AsyncWith, ast.While, ast.For, ast.If)
    return isinstance(around, ast.With | ast.AsyncWith) and len(around.body) == 1


def _outside(fn: Function, call: ast.Call, condition: str) -> Witness:
    line = getattr(enclosing(call, ast.While), "lineno", call.lineno)
    return Witness(call, fn, "outside", line=line, condition=condition)
