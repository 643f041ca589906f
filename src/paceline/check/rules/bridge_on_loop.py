"""A bridge from synchronous code into the loop, used on the loop itself.

`run_coroutine_threadsafe(...).result()` hands a coroutine to the loop and waits for it in this thread. On the loop's
own thread, inside a coroutine or a callback, the loop cannot run it: it waits for itself. `run_until_complete` and
`asyncio.run` refuse there outright.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding
from paceline.check.marks import said
from paceline.check.names import last, parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts, led

Steps = tuple[tuple[Function, ast.expr], ...]
DEPTH = 3


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        if fn.asynchronous:
            yield from _bridges(fn, (), facts, set())


def _bridges(fn: Function, way: Steps, facts: Facts, seen: set[int]) -> Iterator[Finding]:
    if len(way) > DEPTH or id(fn) in seen:
        return
    seen.add(id(fn))
    for call in fn.calls:
        if _waits_for_loop(call, fn, facts):
            steps = (*way, (fn, call))
            start, at = steps[0]
            by = "" if len(steps) == 1 else f" by {said(at)}"
            yield finding(
                at,
                start,
                f"{said(call)} is reached{by} in the coroutine {start.qualname}: the loop waits for what only "
                "the loop can run",
                led("the loop", steps, "waits for the loop, which is itself"),
                "await the coroutine here; use the bridge only from other threads",
                said(call),
                0.75 if len(steps) == 1 else 0.65,
            )
            return
    for mark in facts.runs(fn):
        if mark.callee is not None and not mark.callee.asynchronous:
            yield from _bridges(mark.callee, (*way, (fn, mark.node)), facts, seen)


def _waits_for_loop(call: ast.Call, fn: Function, facts: Facts) -> bool:
    name = last(call.func)
    if name == "run_until_complete":
        return not any(last(c.func) == "new_event_loop" for c in fn.calls) and not isinstance(parent(call), ast.Await)
    if facts.module.canonical(call.func) == "asyncio.run":
        return True
    if name != "result" or not isinstance(call.func, ast.Attribute):
        return False
    value = call.func.value
    if isinstance(value, ast.Name):
        value = fn.bound.get(value.id, value)
    if not isinstance(value, ast.Call) or last(value.func) != "run_coroutine_threadsafe":
        return False
    loop = value.args[1] if len(value.args) > 1 else None
    if isinstance(loop, ast.Name):
        made = fn.bound.get(loop.id)
        return isinstance(made, ast.Call) and last(made.func) in ("get_event_loop", "get_running_loop")
    return isinstance(loop, ast.Call)


RULE = Rule(
    "PC303",
    "bridge-on-its-loop",
    "a bridge into the loop, used on the loop itself",
    find,
    bad="""
        import asyncio

        async def fetch():
            return 1

        async def total():
            loop = asyncio.get_running_loop()
            return asyncio.run_coroutine_threadsafe(fetch(), loop).result()
    """,
    good="""
        import asyncio

        async def fetch():
            return 1

        async def total():
            return await fetch()
    """,
    needs=("async ",),
)
