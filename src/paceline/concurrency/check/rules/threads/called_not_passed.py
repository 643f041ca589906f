"""A function that is called where it was meant to be passed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import is_constant, keyword, short_name
from paceline.concurrency.check.threads.roots import STARTS, STARTS_IN_MODULE

#: Further calls that take a function -> its name and position.
TAKES = {"add_done_callback": ("fn", 0), "call_soon_threadsafe": ("callback", 0), "call_later": ("callback", 1)}


def find(facts: Facts) -> Iterator[Witness]:
    """Report calls, of functions that return nothing, in the place of the function that a thread or callback is."""
    for fn in facts.module.functions:
        for call in fn.calls:
            target = _function_of(call, facts)
            if isinstance(target, ast.Call) and _returns_nothing(facts.module.callee(target, fn)):
                yield Witness(target, fn, call=call, function=text_of(target).removesuffix("()"))


def _function_of(call: ast.Call, facts: Facts) -> ast.expr | None:
    """What a call is given as the function to run."""
    name = short_name(call.func)
    if name in TAKES:
        return keyword(call, *TAKES[name])
    kind, argument, position = STARTS.get(name, ("task", "", 0))
    if kind == "task" or name == "map":
        return None
    if name in STARTS_IN_MODULE and STARTS_IN_MODULE[name] not in facts.module.canonical(call.func).split("."):
        return None
    return keyword(call, argument, None if kind == "fork" else position)


def _returns_nothing(fn: Function | None) -> bool:
    """Whether a function of this file returns None only, and a plain call runs it."""
    if fn is None or fn.asynchronous or fn.generator or fn.name == "__init__" or isinstance(fn.node, ast.Lambda):
        return False
    plain = not getattr(fn.node, "decorator_list", ())
    raises = len(fn.body) == 1 and isinstance(fn.body[0], ast.Raise)
    return plain and not raises and all(r.value is None or is_constant(r.value, None) for r in fn.returns)
