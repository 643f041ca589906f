"""Threads and tasks of executors that are started in the wrong way."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.rules.rule import Witness, blocks_that_make
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import is_within
from paceline.concurrency.check.threads.roots import STARTS, STARTS_IN_MODULE

DEPTH = 3


def nested_submit(facts: Facts) -> Iterator[Witness]:
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


#: Further calls that take a function -> its name and position.
TAKES = {"add_done_callback": ("fn", 0), "call_soon_threadsafe": ("callback", 0), "call_later": ("callback", 1)}


def called_not_passed(facts: Facts) -> Iterator[Witness]:
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


def exit_waits(facts: Facts) -> Iterator[Witness]:
    """Report results that are waited for with a timeout inside the block of the executor that computes them."""
    for fn in facts.module.functions:
        for block, name in blocks_that_make("Executor", fn, facts):
            call = _limited(block, name, fn)
            if call is not None:
                yield Witness(call, fn, block=block)


def _limited(block: ast.With | ast.AsyncWith, pool: str, fn: Function) -> ast.Call | None:
    """The first `result(timeout=...)` in a block of a task that was submitted there."""
    for call in fn.calls:
        inside = is_within(call, block) and isinstance(call.func, ast.Attribute)
        if not inside or call.func.attr not in ("result", "exception"):  # type: ignore[attr-defined]
            continue
        limit = keyword(call, "timeout", 0)
        task = call.func.value  # type: ignore[attr-defined]
        value = fn.bound.get(task.id) if isinstance(task, ast.Name) else task
        submitted = isinstance(value, ast.Call) and dotted(value.func) == f"{pool}.submit"
        if submitted and limit is not None and not is_constant(limit, None) and not is_constant(limit, 0):
            return call
    return None


#: Names of `threading.Thread` that `start`, `join` and `is_alive` use -> which of them.
HIDDEN = {
    "_stop": "join()",
    "_started": "start()",
    "_is_stopped": "join()",
    "_bootstrap": "start()",
    "_delete": "run()",
}


def thread_attribute_hidden(facts: Facts) -> Iterator[Witness]:
    """Report assignments to such attributes in subclasses of threading.Thread."""
    for cls in facts.module.classes.values():
        if not cls.is_a("threading.Thread", "threading.Timer"):
            continue
        for fn in cls.methods.values():
            for target, _ in fn.assigns:
                owner = target.value if isinstance(target, ast.Attribute) else None
                if isinstance(owner, ast.Name) and owner.id == fn.self_name and target.attr in HIDDEN:  # type: ignore[attr-defined]
                    name = target.attr  # type: ignore[attr-defined]
                    yield Witness(target, fn, cls=cls, name=name, method=HIDDEN[name])
                    break
