"""A synchronous call into the event loop, made on the loop itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import parent

Steps = tuple[tuple[Function, ast.expr], ...]
DEPTH = 3


def find(facts: Facts) -> Iterator[Witness]:
    """Report calls that wait for the loop and are reached from a coroutine, or from a callback of the loop."""
    for fn in facts.module.functions:
        if facts.on_loop(fn):
            yield from _bridges(fn, (), facts, set())


def _bridges(fn: Function, way: Steps, facts: Facts, visited: set[int]) -> Iterator[Witness]:
    """Follow the calls of a coroutine, up to DEPTH deep."""
    if len(way) > DEPTH or id(fn) in visited:
        return
    visited.add(id(fn))
    for call in fn.calls:
        if _waits_for_loop(call, fn, way[0][0] if way else fn, facts):
            steps = (*way, (fn, call))
            start, at = steps[0]
            by = "" if len(steps) == 1 else f" by {text_of(at)}"
            yield Witness(
                at,
                start,
                "bridges",
                confidence=0.75 if len(steps) == 1 else 0.65,
                call=call,
                by=by,
                place=_runs(start),
                steps=steps,
            )
            return
    for effect in facts.runs(fn):
        awaited = isinstance(parent(effect.node), ast.Await)  # so that what runs is a coroutine after all
        if effect.callee is not None and not effect.callee.asynchronous and not awaited:
            yield from _bridges(effect.callee, (*way, (fn, effect.node)), facts, visited)


def _runs(fn: Function) -> str:
    return "the coroutine" if fn.asynchronous else "the callback of the loop"


def _waits_for_loop(call: ast.Call, fn: Function, start: Function, facts: Facts) -> bool:
    """Whether a call, reached from a coroutine, waits until its loop has run something."""
    name = short_name(call.func)
    if name == "run_until_complete":
        return not any(short_name(c.func) == "new_event_loop" for c in fn.calls) and not isinstance(
            parent(call), ast.Await
        )
    if facts.module.canonical(call.func) == "asyncio.run":
        return True
    if name != "result" or not isinstance(call.func, ast.Attribute):
        return False
    value = call.func.value
    if isinstance(value, ast.Name):
        value = fn.bound.get(value.id, value)
    if not isinstance(value, ast.Call) or short_name(value.func) != "run_coroutine_threadsafe":
        return False
    loop = value.args[1] if len(value.args) > 1 else None
    if loop is not None and _of_a_coroutine(loop, fn, facts, 0):
        return True
    if isinstance(loop, ast.Attribute) and fn.cls is not None and fn.self_name and dotted(loop.value) == fn.self_name:
        argument = value.args[0]
        if isinstance(argument, ast.Name) and argument.id in fn.parameters:  # whose loop it is, its callers say
            return any(each is start for each in _passed(argument.id, fn, facts))
        callee = argument.func if isinstance(argument, ast.Call) else None
        return (
            callee is not None and facts.module.function_named(callee, fn) is not None
        )  # its own coroutine, on its own loop
    if isinstance(loop, ast.Name):
        binding = fn.bound.get(loop.id)
        return isinstance(binding, ast.Call) and short_name(binding.func) in ("get_event_loop", "get_running_loop")
    return isinstance(loop, ast.Call)


def _passed(name: str, fn: Function, facts: Facts) -> Iterator[Function]:
    """The coroutines of which callers pass a call for a parameter."""
    for argument in facts.module.objects.arguments(fn, name):
        callee = facts.module.callee(argument.value, argument.caller) if isinstance(argument.value, ast.Call) else None
        if callee is not None and callee.asynchronous:
            yield callee


def _of_a_coroutine(loop: ast.expr, fn: Function, facts: Facts, depth: int) -> bool:
    """Whether an expression is the loop that a coroutine runs on, which it passes on: `Client(get_running_loop())`."""
    if isinstance(loop, ast.Call):
        return short_name(loop.func) in ("get_running_loop", "get_event_loop") and fn.asynchronous
    sources: list[tuple[ast.expr, Function]] = []
    if isinstance(loop, ast.Name) and loop.id in fn.bound:
        sources = [(fn.bound[loop.id], fn)]
    elif isinstance(loop, ast.Name) and loop.id in fn.parameters:
        sources = [(given.value, given.caller) for given in facts.module.objects.arguments(fn, loop.id)]
    elif isinstance(loop, ast.Attribute) and dotted(loop.value) == fn.self_name and fn.cls is not None:
        sources = [pair for cls in fn.cls.ancestry for pair in cls.values.get(loop.attr, ())]
    return depth < DEPTH and any(_of_a_coroutine(value, scope, facts, depth + 1) for value, scope in sources)
