"""Locks in code that Python runs in the middle of other code: destructors, handlers of signals and of logging."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.walk import Event, Held
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, Take, Use
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted, short_name

RUNS = {"del": "a destructor or callback of a weak reference", "gc": "a callback of the garbage collector"}


def lock_in_destructor(facts: Facts) -> Iterator[Witness]:
    """Report locks, queues and executors that destructors and collector callbacks wait for."""
    for root in (r for r in facts.roots if r.kind in RUNS):
        fn, handler = root.function, RUNS[root.kind]
        for take in facts.takes(fn).values():
            lock = take.resource
            is_private = fn.name == "__del__" and take.same and not _shared(lock.id, facts)
            other = _elsewhere(lock.id, fn, facts) if lock.sure and lock.non_reentrant and not is_private else None
            if other is not None and not lock.one_of_several:
                since = next((h.line for h in other[1].held if h.resource.id == lock.id), other[1].effect.line)
                (where, node), (caller, event) = take.steps[-1], other
                yield Witness(
                    node,
                    where,
                    handler=handler,
                    lock=lock.id,
                    since=since,
                    caller=caller,
                    event=event,
                    steps=take.steps,
                )
        for use in _queues(fn, facts):
            if fn.name != "__del__" or _shared(use.of, facts):
                yield Witness(use.call, fn, "queues", handler=handler, resource=use.resource)
        for wait in facts.waits(fn).values():
            what = wait.effect.resource  # when it is shut down, it waits for tasks, one of which may run this
            if what is not None and what.kind in ("Executor", "Pool") and what.sure:
                yield Witness(wait.steps[0][1], fn, "waits", handler=handler, wait=wait, what=what)
                break


def _queues(fn: Function, facts: Facts) -> list[Use]:
    """Uses of a `queue.Queue`, which has a lock inside."""
    return [use for use in facts.uses(("put", "get", "put_nowait", "get_nowait"), ("Queue",)) if use.fn is fn]


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


Steps = tuple[tuple[Function, ast.expr], ...]
DEPTH = 3
ENDS = ("exit", "_exit", "abort", "kill", "terminate")


def signal_handler(facts: Facts) -> Iterator[Witness]:
    """Report locks, queues, prints and logging in functions that handle signals."""
    for root in facts.roots:
        if root.kind != "signal":
            continue
        for take in facts.takes(root.function).values():
            if take.resource.non_reentrant and take.resource.sure:
                where, node = take.steps[-1]
                lock = take.resource.id
                yield Witness(node, where, lock=lock, since=take.resource.line or root.line, take=take)
        for use in (use for use in _queues(root.function, facts) if use.resource.sure):
            yield Witness(use.call, use.fn, "queues", since=use.resource.line or use.line, resource=use.resource)
        if not _ends(root.function):
            yield from _writes(root.function, (), facts, set())


def _ends(fn: Function) -> bool:
    """Whether the handler ends the process or raises, so that no interrupted code continues."""
    final = fn.body[-1] if fn.body else None
    if isinstance(final, ast.Raise):
        return True
    return isinstance(final, ast.Expr) and isinstance(final.value, ast.Call) and short_name(final.value.func) in ENDS


def _writes(fn: Function, way: Steps, facts: Facts, visited: set[int]) -> Iterator[Witness]:
    """The first write to a buffered stream, in the handler or its callees."""
    if len(way) >= DEPTH or id(fn) in visited:
        return
    visited.add(id(fn))
    for call in fn.calls:
        name = dotted(call.func)
        buffered = name in ("sys.stdout.write", "sys.stderr.write", "sys.stdout.flush", "sys.stderr.flush")
        if (
            name == "print"
            or buffered
            or (
                short_name(call.func) in LEVELS
                and name.split(".")[0].lower() in ("logging", "log", "logger", "_log", "_logger")
            )
        ):
            steps = (*way, (fn, call))
            yield Witness(call, fn, "writes", steps=steps)
            return
    for effect in facts.runs(fn):
        assert effect.callee is not None
        yield from _writes(effect.callee, (*way, (fn, effect.node)), facts, visited)


LEVELS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")


def logs_under_lock(facts: Facts) -> Iterator[Witness]:
    """Report log calls, direct ones and those of callees, under a lock that a handler of the program takes."""
    takes = {take.resource.id: (emit, take) for emit in _handlers(facts) for take in facts.takes(emit).values()}
    takes = {lock: found for lock, found in takes.items() if found[1].resource.non_reentrant and found[1].resource.sure}
    if not takes:
        return
    logs = {id(fn): call for fn in facts.module.functions for call in fn.calls if _is_log_call(call)}
    for fn in facts.module.functions:
        for effect, locks_held in facts.events(fn):
            first = next((h for h in locks_held if h.resource.id in takes), None)
            if first is None or not isinstance(effect.node, ast.Call):
                continue
            via = None if effect.callee is None else logs.get(id(effect.callee))
            if _is_log_call(effect.node) or (via is not None and effect.callee is not takes[first.resource.id][0]):
                yield _report_logs_under_lock(fn, first, effect.node, *takes[first.resource.id])
                break


def _handlers(facts: Facts) -> Iterator[Function]:
    """What the handlers of `logging` do with a record."""
    for cls in facts.module.classes.values():
        if _is_handler(cls):
            yield from (cls.methods[name] for name in ("emit", "handle") if name in cls.methods)


def _is_handler(cls: Class) -> bool:
    return any(base.startswith("logging.") and base.endswith("Handler") for c in cls.ancestry for base in c.bases)


def _is_log_call(call: ast.Call) -> bool:
    """Whether this is `logger.info(...)`, `logging.info(...)` or `self.log.info(...)`."""
    name, _, level = dotted(call.func).rpartition(".")
    return level in LEVELS and "log" in name.rpartition(".")[2].lower()


def _report_logs_under_lock(fn: Function, first: Held, call: ast.Call, emit: Function, take: Take) -> Witness:
    return Witness(call, fn, first=first, emit=emit, take=take)
