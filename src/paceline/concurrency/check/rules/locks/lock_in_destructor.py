"""A destructor, or a callback of the garbage collector, that takes a lock.

Python runs `__del__`, callbacks of weak references and `gc.callbacks` wherever an object happens to die: also in the
middle of a method that holds the very lock that they take, in the same thread. In `__del__` the object's own lock is
safe, since no thread can be inside an object that is being destroyed; a lock that objects share is not. Nor is a
`queue.Queue`, which has a lock inside (`queue.SimpleQueue` was made for this).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.walk import Event
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts, call_steps
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.threads.roots import Root

RUNS = {"del": "a destructor or callback of a weak reference", "gc": "a callback of the garbage collector"}


def find(facts: Facts) -> Iterator[Finding]:
    """Report locks and queues that destructors and collector callbacks take."""
    for root in facts.roots:
        if root.kind not in RUNS:
            continue
        for take in facts.takes(root.function).values():
            lock = take.resource
            is_private = root.function.name == "__del__" and take.same and not _shared(lock.id, facts)
            if lock.non_reentrant and lock.sure and not lock.one_of_several and not is_private:
                other = _elsewhere(lock.id, root.function, facts)
                if other is not None:
                    yield _report(root, take.steps, lock.id, other)
        yield from _queues(root, facts)
        yield from _waits(root, facts)


def _waits(root: Root, facts: Facts) -> Iterator[Finding]:
    """`self._executor.shutdown()` in a destructor, which waits for tasks, and may run in one of their threads."""
    for wait in facts.waits(root.function).values():
        what = wait.effect.resource
        if what is not None and what.kind in ("Executor", "Pool") and what.sure:
            yield finding(
                wait.steps[0][1],
                root.function,
                f"{root.function.qualname} is {RUNS[root.kind]}, and waits for {wait.effect.waits_for}: it may run in "
                "any thread, also in one of those or under a lock that a task needs",
                [
                    Step("thread A", root.function.line, "frees the last reference in the middle of something"),
                    *call_steps("thread A", wait.steps, f"waits for {wait.effect.waits_for}"),
                    Step("thread B", wait.effect.line, "needs what thread A holds, or is thread A itself"),
                ],
                remedy="shut down in a method that the owner calls, and with wait=False in the destructor",
                about=what.id,
                confidence=0.6,
            )
            return


def _shared(lock: str, facts: Facts) -> bool:
    """Whether the lock is a global or an attribute of the class itself, rather than of one object."""
    owner, _, attribute = lock.rpartition(".")
    cls = facts.module.classes.get(owner)
    return cls is None or any(fn.cls is not cls for _, fn in cls.values.get(attribute, ()))


def _elsewhere(lock: str, fn: Function, facts: Facts) -> tuple[Function, Event] | None:
    """Another function that holds the lock, preferably where it calls something."""
    witness: tuple[Function, Event] | None = None
    for other in facts.module.functions:
        for event in facts.events(other) if other is not fn else ():
            if any(h.resource.id == lock for h in event.held):
                return other, event
            resource = event.effect.resource
            if event.effect.kind == "take" and resource is not None and resource.id == lock:
                witness = witness or (other, event)
    return witness


def _queues(root: Root, facts: Facts) -> Iterator[Finding]:
    """Uses of a shared queue.Queue."""
    for call in root.function.calls:
        if short_name(call.func) in ("put", "get", "put_nowait", "get_nowait") and isinstance(call.func, ast.Attribute):
            resource = facts.module.resource(call.func.value, root.function)
            is_private = root.function.name == "__del__" and resource is not None and not _shared(resource.id, facts)
            if resource is not None and resource.kind == "Queue" and not is_private:
                yield finding(
                    call,
                    root.function,
                    f"{RUNS[root.kind]} uses {resource.id}, a queue.Queue: if the collector runs inside one of "
                    "the queue's methods, its internal lock is already held",
                    [
                        Step(
                            "thread A",
                            call.lineno,
                            f"is inside {resource.id}, whose lock it holds, when an object dies",
                        ),
                        Step("thread A", call.lineno, f"{root.function.qualname} waits for the same lock"),
                    ],
                    remedy="use queue.SimpleQueue, whose put() is re-entrant",
                    about=resource.id,
                    confidence=0.8,
                )


def _report(
    root: Root, steps: tuple[tuple[Function, ast.expr], ...], lock: str, other: tuple[Function, Event]
) -> Finding:
    fn, event = other
    since = next((h.line for h in event.held if h.resource.id == lock), event.effect.line)
    where, node = steps[-1]
    return finding(
        node,
        where,
        f"{RUNS[root.kind]} takes {lock}; if the collector runs while {fn.qualname} holds it (line "
        f"{since}), the thread waits for itself",
        [
            Step("thread A", since, f"{fn.qualname} takes {lock}"),
            Step("thread A", event.effect.line, "an object dies here, and Python runs its destructor or callback"),
            *call_steps("thread A", steps, f"waits for {lock}, which its own thread holds"),
        ],
        remedy="pass the work to a thread (by a queue.SimpleQueue), or make the lock re-entrant and the code "
        "safe for it",
        about=lock,
        confidence=0.85,
    )


RULE = Rule(
    "PC111",
    "lock-in-destructor",
    "a destructor or garbage-collector callback that takes a lock",
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
