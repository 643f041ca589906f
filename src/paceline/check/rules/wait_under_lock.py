"""A wait for somebody who first needs the lock that the waiter holds.

A thread that is joined, a task whose result is awaited, an event that must be set, an item that must be put: when
whoever does that takes the same lock on the way, and the waiter holds it, both wait for ever. It is reported only
where that way is seen; a wait under a lock that nobody else needs is merely slow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import Mark, said
from paceline.check.names import is_constant, keyword, last
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts, led, runs_now
from paceline.check.walk import Held
from paceline.narrative import Wait

Steps = tuple[tuple[Function, ast.expr], ...]
DOES = {"Event": "set", "ProcessEvent": "set", "Queue": "put", "SimpleQueue": "put", "ProcessQueue": "put"}


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        told: set[str] = set()
        for mark, held in facts.events(fn):
            if not held:
                continue
            for wait, steps in _waits(mark, fn, facts):
                for first in held:
                    lock = first.resource.id
                    if lock in told or (wait.resource is not None and wait.resource.id == lock):
                        continue
                    way = _needed(wait, lock, fn, facts)
                    if way is not None:
                        told.add(lock)
                        yield _tell(fn, first, wait, steps, way)


def _waits(mark: Mark, fn: Function, facts: Facts) -> Iterator[tuple[Mark, Steps]]:
    if mark.kind == "wait":
        if not mark.timeout:
            yield mark, ((fn, mark.node),)
    elif mark.callee is not None and runs_now(mark):
        for wait in facts.waits(mark.callee).values():
            yield wait.mark, ((fn, mark.node), *wait.steps)
    elif _maps(mark.node, fn, facts):
        yield Mark("wait", mark.node, None, None, "every task to end"), ((fn, mark.node),)
    elif _shuts_down(mark.node):
        yield Mark("wait", mark.node, None, None, "every submitted task to end"), ((fn, mark.node),)


def _maps(call: ast.expr, fn: Function, facts: Facts) -> bool:
    """`executor.map` in the executor's own `with`, which ends only when all tasks have."""
    if not isinstance(call, ast.Call) or last(call.func) != "map" or not isinstance(call.func, ast.Attribute):
        return False
    found = facts.module.resource(call.func.value, fn)
    return found is not None and found.kind == "Executor"


def _shuts_down(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call) or last(call.func) != "shutdown":
        return False
    wait = keyword(call, "wait", 0)
    return wait is not None and not is_constant(wait, False)


def _needed(wait: Mark, lock: str, fn: Function, facts: Facts) -> tuple[str, Steps] | None:
    """Who must do something first, and the way on which that one waits for the lock."""
    kind = wait.resource.kind if wait.resource is not None else "Executor"
    if kind in ("Thread", "Future", "Executor"):
        for root in facts.roots:
            if root.kind == "thread":
                take = facts.takes(root.function).get(lock)
                if take is not None:
                    return root.function.qualname, take.steps
        return _submitting(lock, fn, facts) if kind == "Executor" else None
    assert wait.resource is not None
    does = "notify" if kind == "Condition" else DOES.get(kind, "")
    for other in facts.module.functions:
        for mark, held in facts.events(other):
            call = mark.node
            if not does or not isinstance(call, ast.Call) or not last(call.func).startswith(does) or other is fn:
                continue
            found = facts.module.resource(call.func.value, other) if isinstance(call.func, ast.Attribute) else None
            if found is None or found.id != wait.resource.id:
                continue
            mine = next((h for h in held if h.resource.id == lock), None)
            if mine is not None:
                return other.qualname, ((other, _at(mine, call)),)
    return None


def _at(held: Held, call: ast.Call) -> ast.expr:
    name = ast.Name(held.receiver or held.resource.id)
    return ast.copy_location(name, call)


def _submitting(lock: str, fn: Function, facts: Facts) -> tuple[str, Steps] | None:
    """An executor that wraps another one: its tasks or their callbacks submit again, under the same lock."""
    if fn.cls is None:
        return None
    submit = fn.cls.method("submit")
    take = facts.takes(submit).get(lock) if submit is not None else None
    return None if submit is None or take is None else (submit.qualname, take.steps)


def _tell(fn: Function, first: Held, wait: Mark, steps: Steps, way: tuple[str, Steps]) -> Finding:
    lock, (other, needed) = first.resource, way
    return finding(
        steps[0][1],
        fn,
        f"{said(steps[0][1])} waits for {wait.waits_for} with {lock.id} held, and {other} needs {lock.id} to get there",
        [
            Step("thread A", first.line, f"{fn.qualname} takes {lock.id}"),
            *led("thread A", steps, f"waits for {wait.waits_for}"),
            *led("thread B", needed, f"waits for {lock.id}, which thread A holds"),
        ],
        f"release {lock.id} before waiting, or wait with a timeout and release it in between",
        lock.id,
        0.85 if wait.resource is not None and lock.sure else 0.6,
        [
            Wait(
                "thread A",
                f"took {lock.id} at line {first.line}",
                wait.waits_for.partition(" to ")[2] or "end",
                "thread B",
            ),
            Wait("thread B", f"runs {other}", f"release {lock.id}", "thread A"),
        ],
    )


RULE = Rule(
    "PC105",
    "wait-under-lock",
    "a wait for somebody who needs the lock that the waiter holds",
    find,
    bad="""
        import threading

        class Service:
            def __init__(self):
                self._lock = threading.Lock()
                self._thread = threading.Thread(target=self._run)
                self._open = True

            def _run(self):
                while True:
                    with self._lock:
                        if not self._open:
                            return

            def close(self):
                with self._lock:
                    self._open = False
                    self._thread.join()
    """,
    good="""
        import threading

        class Service:
            def __init__(self):
                self._lock = threading.Lock()
                self._thread = threading.Thread(target=self._run)
                self._open = True

            def _run(self):
                while True:
                    with self._lock:
                        if not self._open:
                            return

            def close(self):
                with self._lock:
                    self._open = False
                self._thread.join()
    """,
)
