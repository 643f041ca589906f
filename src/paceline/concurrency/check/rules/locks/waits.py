"""Waits for a thread that first needs a lock which the waiting thread holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect, runs_now
from paceline.concurrency.check.flow.walk import Held
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, is_constant, is_within, keyword, short_name
from paceline.concurrency.check.threads.shared_state import accesses_of_class

Steps = tuple[tuple[Function, ast.expr], ...]
STARTS = ("create_task", "ensure_future", "start_soon")
#: Functions that wait for the coroutines and tasks that they are given.
GATHERS = ("gather", "wait", "shield")


def wait_under_lock(facts: Facts) -> Iterator[Witness]:
    """Report waits under a lock that the awaited thread takes first."""
    for fn in facts.module.functions:
        reported: set[str] = set()
        for effect, locks_held in facts.events(fn):
            if not locks_held:
                continue
            for wait, steps in _waits(effect, fn, facts):
                for first in locks_held:
                    lock = first.resource.id
                    if lock in reported or (wait.resource is not None and wait.resource.id == lock):
                        continue
                    way = _needed(wait, lock, fn, steps[-1][0], facts)
                    if way is not None:
                        reported.add(lock)
                        yield _report(fn, first, wait, steps, way)
        yield from _polls(fn, facts)
        yield from _tasks(fn, facts)


def _tasks(fn: Function, facts: Facts) -> Iterator[Witness]:
    """Tasks that are awaited under a lock of asyncio that they need: by themselves, with `gather` or in a group."""
    for wait in fn.awaits if fn.asynchronous else ():
        for lock in sorted(facts.held_at(wait, fn) - facts.guards(fn)):
            for run, node in _awaited_tasks(wait.value, fn, facts):
                take = facts.takes(run).get(lock)
                same = take is not None and take.same and ("." not in lock or _of_object(node, fn))
                if take is not None and same and take.resource.sure and take.resource.kind == "AsyncLock":
                    yield Witness(wait, fn, "task", run=run, lock=lock, needed=take.steps)
                    return


def _awaited_tasks(value: ast.expr, fn: Function, facts: Facts) -> Iterator[tuple[Function, ast.Call]]:
    """The coroutines that run in tasks for which an await waits, each with the call that makes it."""
    # A task that was cancelled leaves its wait for the lock.
    if any(short_name(c.func) == "cancel" and c.lineno <= value.lineno for c in fn.calls):
        return
    if isinstance(value, ast.Call) and short_name(value.func) in GATHERS and keyword(value, "timeout") is None:
        for argument in value.args:
            task = argument.value if isinstance(argument, ast.Starred) else argument
            yield from _made(task, fn, facts, 0)
    elif isinstance(value, ast.Name | ast.Attribute):
        yield from _made(value, fn, facts, 0)


def _made(value: ast.expr, fn: Function, facts: Facts, depth: int) -> Iterator[tuple[Function, ast.Call]]:
    """The coroutines behind a task, a list of tasks, or a call of a coroutine."""
    if depth > DEPTH:
        return
    if isinstance(value, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        yield from _made(value.elt, fn, facts, depth + 1)
    elif isinstance(value, ast.Call):
        coroutine = value.args[0] if short_name(value.func) in STARTS and value.args else value
        run = facts.module.callee(coroutine, fn) if isinstance(coroutine, ast.Call) else None
        if run is not None and run.asynchronous and isinstance(coroutine, ast.Call):
            yield run, coroutine
    elif isinstance(value, ast.Name | ast.Attribute):
        elements = facts.module.objects.elements(value, fn)
        values: list[tuple[ast.expr, Function]] = [
            (v.what, v.fn) for v in elements if isinstance(v.what, ast.Call) and v.fn is not None
        ]
        if isinstance(value, ast.Name) and value.id in fn.bound:
            values.append((fn.bound[value.id], fn))
        elif isinstance(value, ast.Attribute):
            pairs = ((t, v, f) for f in facts.module.functions for t, v in f.assigns if isinstance(t, ast.Attribute))
            values += [(v, f) for t, v, f in pairs if t.attr == value.attr and isinstance(v, ast.Call)]
        for each, scope in values:
            if each is not value:
                yield from _made(each, scope, facts, depth + 1)


DEPTH = 4  # names and lists through which a task is followed


def _of_object(call: ast.Call, fn: Function) -> bool:
    """Whether a method of the own object is called."""
    return isinstance(call.func, ast.Attribute) and dotted(call.func.value) in ("self", fn.self_name)


def _polls(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`while self.queue: sleep(1)` under the lock that others need to change what the loop asks for."""
    for loop in fn.loops:
        sleeps = isinstance(loop, ast.While) and [
            c for c in fn.calls if short_name(c.func) == "sleep" and enclosing(c, ast.While, ast.For) is loop
        ]
        locks = facts.held_at(loop.body[0], fn) if sleeps and isinstance(loop, ast.While) else frozenset()
        if not locks or not isinstance(loop, ast.While) or fn.cls is None or not sleeps:
            continue
        # A loop that releases the lock meanwhile lets the others change what it asks for.
        if any(m.kind == "free" and m.line >= loop.lineno for m in facts.walker.effects(fn)):
            continue
        attributes = {
            n.attr for n in ast.walk(loop.test) if isinstance(n, ast.Attribute) and dotted(n.value) == fn.self_name
        }
        for name in sorted(attributes):
            changes = [a for a in accesses_of_class(fn.cls, facts).get(name, ()) if a.changes and a.fn is not fn]
            other = next((a for a in changes if a.locks & locks), None)
            if other is not None:
                yield Witness(sleeps[0], fn, "poll", other=other, lock=min(other.locks & locks), loop=loop)
                return


def _waits(effect: Effect, fn: Function, facts: Facts) -> Iterator[tuple[Effect, Steps]]:
    """The waits without a timeout that a call leads to."""
    if effect.kind in ("wait", "pause"):
        if not effect.timeout:
            yield effect, ((fn, effect.node),)
    elif effect.callee is not None and runs_now(effect):
        for wait in facts.waits(effect.callee).values():
            yield wait.effect, ((fn, effect.node), *wait.steps)
    elif _maps(effect.node, fn, facts):
        yield Effect("wait", effect.node, None, None, "every task to end"), ((fn, effect.node),)
    elif _shuts_down(effect.node):
        yield Effect("wait", effect.node, None, None, "every submitted task to end"), ((fn, effect.node),)


def _maps(call: ast.expr, fn: Function, facts: Facts) -> bool:
    """Whether this is `executor.map`, whose results or `with` block end only when all tasks have ended."""
    if not isinstance(call, ast.Call) or short_name(call.func) != "map" or not isinstance(call.func, ast.Attribute):
        return False
    resource = facts.module.resource(call.func.value, fn)
    return resource is not None and resource.kind == "Executor"


def _shuts_down(call: ast.expr) -> bool:
    """Whether this is `shutdown(wait=True)`."""
    if not isinstance(call, ast.Call) or short_name(call.func) != "shutdown":
        return False
    wait = keyword(call, "wait", 0)
    return wait is not None and not is_constant(wait, False)


def _needed(wait: Effect, lock: str, fn: Function, waiter: Function, facts: Facts) -> tuple[str, Steps] | None:
    """The function that must act first, and the path on which it waits for the lock; None if there is none."""
    kind = wait.resource.kind if wait.resource is not None else "Executor"
    if kind in ("Thread", "Future", "Executor"):
        for root in facts.roots:
            if root.kind == "thread":
                take = facts.takes(root.function).get(lock)
                if take is not None:
                    return root.function.qualname, take.steps
        return _submitting(lock, fn, facts) if kind == "Executor" else None
    others = [use for use in facts.wakers(wait) if use.fn is not fn]
    if kind in ("AsyncEvent", "AsyncQueue"):  # one that does not need the lock suffices: nothing else is blocked
        later = [use for use in others if use.fn.name != "__init__"]
        if not all(lock in facts.held_at(u.call, u.fn) or _takes_first(lock, u, facts) for u in later):
            return None
    for use in others:
        events = (event for event in facts.events(use.fn) if event.effect.node is use.call)
        mine = next((h for event in events for h in event.held if h.resource.id == lock), None)
        if mine is not None:
            return use.fn.qualname, ((use.fn, _at(mine, use.call)),)
        take = facts.takes(use.fn).get(lock) if kind != "Condition" else None
        if take is not None and _takes_first(lock, use, facts):
            return use.fn.qualname, take.steps
    others = [use for use in facts.wakers(wait) if use.fn is not waiter]
    return _called_under(others, lock, facts) if kind == "Condition" else None


def _called_under(notifies: list[Use], lock: str, facts: Facts) -> tuple[str, Steps] | None:
    """The call under the lock by which a condition is notified, where every call of what notifies it is such a one."""
    for use in notifies:
        calls = facts.callers.get(id(use.fn), [])
        under = [(caller, h, e.effect) for caller, e in calls for h in e.held if h.resource.id == lock]
        if under and len(under) == len(calls):
            caller, lock_held, effect = under[0]
            return caller.qualname, ((caller, _at(lock_held, effect.node)),)
    return None


def _takes_first(lock: str, use: Use, facts: Facts) -> bool:
    """Whether a function takes a lock on its way to a use."""
    take = facts.takes(use.fn).get(lock)
    return take is not None and _comes_first(take.steps[0][1], use.call, use.fn)


def _comes_first(take: ast.expr, call: ast.Call, fn: Function) -> bool:
    """Whether a lock is taken on the way to a call: before it, or in a loop around both."""
    loop = enclosing(call, ast.For, ast.While)
    around = loop is not None and is_within(take, loop)
    return around or (take.lineno < call.lineno and enclosing(take, ast.If) is None)


def _at(lock_held: Held, call: ast.expr) -> ast.expr:
    name = ast.Name(lock_held.receiver or lock_held.resource.id)
    return ast.copy_location(name, call)


def _submitting(lock: str, fn: Function, facts: Facts) -> tuple[str, Steps] | None:
    """The same for an executor that wraps another one and whose tasks submit again, under the same lock."""
    if fn.cls is None:
        return None
    submit = fn.cls.method("submit")
    take = facts.takes(submit).get(lock) if submit is not None else None
    return None if submit is None or take is None else (submit.qualname, take.steps)


def _report(fn: Function, first: Held, wait: Effect, steps: Steps, way: tuple[str, Steps]) -> Witness:
    lock, (other, needed) = first.resource, way
    sure, need = 0.85 if wait.resource is not None and lock.sure else 0.6, wait.waits_for.partition(" to ")[2] or "end"
    return Witness(
        steps[0][1],
        fn,
        confidence=sure,
        wait=wait,
        lock=lock,
        other=other,
        first=first,
        steps=steps,
        needed=needed,
        need=need,
    )
