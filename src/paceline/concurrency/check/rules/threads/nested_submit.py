"""A task that waits for another task of the same executor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name

DEPTH = 3


def find(facts: Facts) -> Iterator[Witness]:
    """Report tasks that submit to their own executor and wait for the result."""
    for fn in facts.module.functions:
        for call in fn.calls:
            pool = _executor(call, fn, facts)
            place = 1 if short_name(call.func) == "run_in_executor" else 0
            task = facts.module.function_named(call.args[place], fn) if pool and len(call.args) > place else None
            inner = _submits(task, pool, facts, 0) if task is not None and pool is not None else None
            if task is not None and pool is not None and inner is not None:
                where, at = inner
                yield Witness(at, where, pool=pool, submitted=call, task=task)


def _executor(call: ast.Call, fn: Function, facts: Facts) -> str | None:
    """The id of the executor that a call submits to."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("submit", "map", "run_in_executor"):
        return None
    executor = call.func.value if call.func.attr != "run_in_executor" else call.args[0] if call.args else None
    resource = facts.module.resource(executor, fn) if executor is not None else None
    return resource.id if resource is not None and resource.kind == "Executor" else None


def _submits(fn: Function, pool: str, facts: Facts, depth: int) -> tuple[Function, ast.Call] | None:
    """The place where a task submits to its own executor and waits for a result; None if there is none."""
    calls = [c for c in fn.calls if _executor(c, fn, facts) == pool]
    waits = [
        m
        for m in facts.walker.effects(fn)
        if short_name(getattr(m.node, "func", m.node)) in ("result", "wait", "as_completed")
    ]
    if calls and waits:
        return fn, waits[0].node  # type: ignore[return-value]
    for wait in waits:
        if isinstance(wait.node, ast.Call) and _kept(wait.node, fn, pool, facts):
            return fn, wait.node
    if depth < DEPTH:
        for effect in facts.runs(fn):
            assert effect.callee is not None
            site = _submits(effect.callee, pool, facts, depth + 1)
            if site is not None:
                return site
    return None


def _kept(wait: ast.Call, fn: Function, pool: str, facts: Facts) -> bool:
    """Whether this waits for an element of a container of futures of the executor: `self.futures[name].result()`."""
    future = wait.func.value if isinstance(wait.func, ast.Attribute) else None
    over = fn.looped.get(future.id) if isinstance(future, ast.Name) else None
    over = future.value if isinstance(future, ast.Subscript) else over
    elements = facts.module.objects.elements(over, fn) if over is not None else ()
    calls = [(v.what, v.fn) for v in elements if isinstance(v.what, ast.Call) and v.fn is not None]
    return any(_executor(call, scope, facts) == pool for call, scope in calls)
