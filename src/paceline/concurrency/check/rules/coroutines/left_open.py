"""A stream of objects whose receiver waits for more, because one of its senders is never closed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import parent

MAKES = ("create_memory_object_stream", "open_memory_channel")
CLOSES = ("close", "aclose")
KEEPS_OPEN = ("send", "send_nowait", "statistics", "clone")
#: Calls that start a coroutine with the arguments that follow it, and its position.
STARTS = {"start_soon": 0, "start": 0}
DEPTH = 4


def find(facts: Facts) -> Iterator[Witness]:
    """Report senders that nothing closes, of streams that a loop receives from."""
    for fn in facts.module.functions:
        for target, value in fn.assigns:
            construction = (
                value if isinstance(value, ast.Call) else value.value if isinstance(value, ast.Subscript) else None
            )
            called = (
                construction.func.value
                if isinstance(construction, ast.Call) and isinstance(construction.func, ast.Subscript)
                else None
            )
            name = short_name(called if called is not None else getattr(construction, "func", value))
            pair = target.elts if isinstance(target, ast.Tuple) and len(target.elts) == 2 else ()
            if name not in MAKES or not all(isinstance(each, ast.Name) for each in pair) or not pair:
                continue
            sender, receiver = (each.id for each in pair if isinstance(each, ast.Name))
            loop = _received(receiver, fn, facts, 0)
            if loop is not None and (leak := _left_open(sender, fn, facts, 0)) is not None:
                yield Witness(leak, fn, sender=sender, loop=loop)


def _uses(name: str, fn: Function) -> list[ast.Name]:
    """The uses of a name in a function and in those inside it."""
    return [n for n in fn.names if n.id == name and isinstance(n.ctx, ast.Load)]


def _received(name: str, fn: Function, facts: Facts, depth: int) -> tuple[Function, ast.AsyncFor] | None:
    """The loop that takes everything out of a receiver, in a function or in one that gets it."""
    for use in _uses(name, fn):
        up = parent(use)
        if isinstance(up, ast.AsyncFor) and up.iter is use:
            return fn, up
        destination = _given(use, fn, facts) if depth < DEPTH else None
        if (
            destination is not None
            and (loop := _received(destination[1], destination[0], facts, depth + 1)) is not None
        ):
            return loop
    return None


def _given(use: ast.expr, fn: Function, facts: Facts) -> tuple[Function, str] | None:
    """The function of this file, and its parameter, that gets an argument by a call, or by the start of a task."""
    call = parent(use)
    if not isinstance(call, ast.Call) or use not in call.args:
        return None
    name, place = short_name(call.func), call.args.index(use)
    callee = facts.module.callee(call, fn)
    if callee is None and name in STARTS and call.args:
        callee, place = facts.module.function_named(call.args[0], fn), place - 1
    if callee is None or place < 0:
        return None
    parameters = list(callee.parameters)[1 if callee.cls is not None and callee.self_name else 0 :]
    return (callee, parameters[place]) if place < len(parameters) else None


def _left_open(name: str, fn: Function, facts: Facts, depth: int) -> ast.expr | None:
    """A use of a sender that nothing closes; None where something does, or where that is not known."""
    uses = _uses(name, fn)
    if any(dotted(i.context_expr).partition(".")[0] == name for w in fn.withs for i in w.items) or depth > DEPTH:
        return None
    last: ast.expr | None = None
    for use in uses:
        up = parent(use)
        if isinstance(up, ast.Attribute):
            call = parent(up)
            if up.attr in CLOSES or up.attr not in KEEPS_OPEN or not isinstance(call, ast.Call):
                return None
            last = last or use
            continue
        destination = _given(use, fn, facts)
        if destination is None or _left_open(destination[1], destination[0], facts, depth + 1) is None:
            return None
        last = last or use
    return last
