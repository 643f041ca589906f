"""A destructor, or a callback of the garbage collector, that takes a lock.

Python runs `__del__`, weak references' callbacks and `gc.callbacks` wherever an object happens to die: also in the
middle of a method that holds the very lock that they take, in the same thread. The object's own lock is no danger in
its `__del__`, since nobody can be inside an object that dies; a lock shared with others is. So is a `queue.Queue`,
which has a lock inside (`queue.SimpleQueue` was made for this).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.names import last
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts, Root, led
from paceline.check.walk import Event

RUNS = {"del": "a destructor or weak reference's callback", "gc": "a callback of the garbage collector"}


def find(facts: Facts) -> Iterator[Finding]:
    for root in facts.roots:
        if root.kind not in RUNS:
            continue
        for take in facts.takes(root.function).values():
            lock = take.resource
            own = root.function.name == "__del__" and take.same and not _shared(lock.id, facts)
            if lock.once and lock.sure and not lock.many and not own:
                other = _elsewhere(lock.id, root.function, facts)
                if other is not None:
                    yield _tell(root, take.steps, lock.id, other)
        yield from _queues(root, facts)


def _shared(lock: str, facts: Facts) -> bool:
    """A global, or an attribute of the class itself."""
    owner, _, attribute = lock.rpartition(".")
    cls = facts.module.classes.get(owner)
    return cls is None or any(fn.cls is not cls for _, fn in cls.values.get(attribute, ()))


def _elsewhere(lock: str, fn: Function, facts: Facts) -> tuple[Function, Event] | None:
    for other in facts.module.functions:
        if other is not fn:
            for event in facts.events(other):
                if event.mark.kind == "call" and any(h.resource.id == lock for h in event.held):
                    return other, event
    return None


def _queues(root: Root, facts: Facts) -> Iterator[Finding]:
    for call in root.function.calls:
        if last(call.func) in ("put", "get", "put_nowait", "get_nowait") and isinstance(call.func, ast.Attribute):
            found = facts.module.resource(call.func.value, root.function)
            own = root.function.name == "__del__" and found is not None and not _shared(found.id, facts)
            if found is not None and found.kind == "Queue" and not own:
                yield finding(
                    call,
                    root.function,
                    f"{RUNS[root.kind]} uses {found.id}, a queue.Queue: if the collector runs inside one of "
                    "the queue's own methods, its lock is held already",
                    [
                        Step(
                            "thread A", call.lineno, f"is inside {found.id}, whose lock it holds, when an object dies"
                        ),
                        Step("thread A", call.lineno, f"{root.function.qualname} waits for the same lock"),
                    ],
                    "use queue.SimpleQueue, whose put may be interrupted by itself",
                    found.id,
                    0.8,
                )


def _tell(
    root: Root, steps: tuple[tuple[Function, ast.expr], ...], lock: str, other: tuple[Function, Event]
) -> Finding:
    fn, event = other
    held = next(h for h in event.held if h.resource.id == lock)
    where, node = steps[-1]
    return finding(
        node,
        where,
        f"{RUNS[root.kind]} takes {lock}; if the collector runs while {fn.qualname} holds it (line "
        f"{held.line}), the thread waits for itself",
        [
            Step("thread A", held.line, f"{fn.qualname} takes {lock}"),
            Step("thread A", event.mark.line, "an object dies here, and Python runs what is to run then"),
            *led("thread A", steps, f"waits for {lock}, which its own thread holds"),
        ],
        "leave the work to a thread (put it in a queue.SimpleQueue), or make the lock re-entrant and the data bear it",
        lock,
        0.85,
    )


RULE = Rule(
    "PC111",
    "lock-in-destructor",
    "a destructor or collector's callback that takes a lock",
    find,
    bad="""
        import threading

        _lock = threading.Lock()
        _alive = {}

        class Handle:
            def __init__(self, name):
                with _lock:
                    _alive[name] = object()
                    self.name = str(name)

            def __del__(self):
                with _lock:
                    _alive.pop(self.name, None)
    """,
    good="""
        import queue
        import threading

        _lock = threading.Lock()
        _alive = {}
        _dead = queue.SimpleQueue()

        class Handle:
            def __init__(self, name):
                with _lock:
                    _alive[name] = object()
                    self.name = str(name)

            def __del__(self):
                _dead.put(self.name)
    """,
    needs=("__del__", "weakref", "gc.callbacks"),
)
