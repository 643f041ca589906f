"""A lock that its holder takes again.

A `threading.Lock`, `multiprocessing.Lock` or `asyncio.Lock` does not know who holds it: taken a second time by the
same thread, it waits for itself. Usually the second take hides in a method that is called with the lock held. Only
locks that were seen being made are judged, and only where both takes are on the same object.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.names import dotted
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts, led, runs_now, same_object
from paceline.check.walk import Held
from paceline.narrative import Wait


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        told: set[tuple[str, int]] = set()
        for mark, held in facts.events(fn):
            for first in held:
                lock = first.resource
                if not lock.once or not lock.sure or lock.many:
                    continue
                steps: tuple[tuple[Function, ast.expr], ...] | None = None
                if mark.kind == "take" and mark.resource is not None and mark.resource.id == lock.id:
                    node = mark.node.func.value if isinstance(mark.node, ast.Call) else mark.node  # type: ignore[attr-defined]
                    if dotted(node) == first.receiver and mark.line != first.line:
                        steps = ((fn, mark.node),)
                elif mark.callee is not None and runs_now(mark) and same_object(mark, fn):
                    take = facts.takes(mark.callee).get(lock.id)
                    mine = first.receiver.startswith((fn.me + ".", "cls.")) if fn.me else "." not in first.receiver
                    same = take is not None and take.same and (mine or "." not in first.receiver)
                    if take is not None and same and not any(lock.id in facts.drops(f) for f, _ in take.steps):
                        steps = ((fn, mark.node), *take.steps)
                if steps is not None and (lock.id, mark.line) not in told:
                    told.add((lock.id, mark.line))
                    yield _tell(fn, first, steps)


def _tell(fn: Function, first: Held, steps: tuple[tuple[Function, ast.expr], ...]) -> Finding:
    lock = first.resource
    where, _last = steps[-1]
    by = "" if len(steps) == 1 else f" by {said(steps[0][1])}"
    return finding(
        steps[0][1],
        fn,
        f"{lock.id} is taken again{by} while it is held since line {first.line}: it is no RLock, so the "
        "thread waits for itself",
        [
            Step("thread A", first.line, f"{fn.qualname} takes {lock.id}"),
            *led("thread A", steps, f"waits for {lock.id}, which it holds itself"),
        ],
        f"call it after the lock is released, split off a part of {where.qualname} that expects the lock "
        "held, or make it an RLock",
        lock.id,
        0.9,
        [Wait("thread A", f"took {lock.id} at line {first.line}", f"release {lock.id}", "thread A")],
    )


RULE = Rule(
    "PC103",
    "lock-taken-again",
    "a lock that its holder takes again",
    find,
    bad="""
        import threading

        class Pool:
            def __init__(self):
                self._lock = threading.Lock()
                self._free = []

            def size(self):
                with self._lock:
                    return len(self._free)

            def put(self, item):
                with self._lock:
                    if self.size() < 10:
                        self._free.append(item)
    """,
    good="""
        import threading

        class Pool:
            def __init__(self):
                self._lock = threading.Lock()
                self._free = []

            def size(self):
                with self._lock:
                    return len(self._free)

            def put(self, item):
                with self._lock:
                    if len(self._free) < 10:
                        self._free.append(item)
    """,
)
