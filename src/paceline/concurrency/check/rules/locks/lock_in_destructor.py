"""A destructor, or a callback of the garbage collector, that takes a lock."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.walk import Event
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.threads.roots import Root

RUNS = {"del": "a destructor or callback of a weak reference", "gc": "a callback of the garbage collector"}


def find(facts: Facts) -> Iterator[Witness]:
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


def _waits(root: Root, facts: Facts) -> Iterator[Witness]:
    """`self._executor.shutdown()` in a destructor, which waits for tasks, and may run in one of their threads."""
    for wait in facts.waits(root.function).values():
        what = wait.effect.resource
        if what is not None and what.kind in ("Executor", "Pool") and what.sure:
            yield Witness(wait.steps[0][1], root.function, "waits", handler=RUNS[root.kind], wait=wait, what=what)
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


def _queues(root: Root, facts: Facts) -> Iterator[Witness]:
    """Uses of a shared queue.Queue."""
    for call in root.function.calls:
        if short_name(call.func) in ("put", "get", "put_nowait", "get_nowait") and isinstance(call.func, ast.Attribute):
            resource = facts.module.resource(call.func.value, root.function)
            is_private = root.function.name == "__del__" and resource is not None and not _shared(resource.id, facts)
            if resource is not None and resource.kind == "Queue" and not is_private:
                yield Witness(call, root.function, "queues", handler=RUNS[root.kind], resource=resource)


def _report(
    root: Root, steps: tuple[tuple[Function, ast.expr], ...], lock: str, other: tuple[Function, Event]
) -> Witness:
    fn, event = other
    since = next((h.line for h in event.held if h.resource.id == lock), event.effect.line)
    where, node = steps[-1]
    return Witness(node, where, handler=RUNS[root.kind], lock=lock, caller=fn, since=since, event=event, steps=steps)
