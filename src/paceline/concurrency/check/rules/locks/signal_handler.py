"""A signal handler that takes a lock, prints or logs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name

Steps = tuple[tuple[Function, ast.expr], ...]
DEPTH = 3
ENDS = ("exit", "_exit", "abort", "kill", "terminate")
LOGS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")


def find(facts: Facts) -> Iterator[Witness]:
    """Report locks, queues, prints and logging in functions that handle signals."""
    for root in facts.roots:
        if root.kind != "signal":
            continue
        for take in facts.takes(root.function).values():
            if take.resource.non_reentrant and take.resource.sure:
                where, node = take.steps[-1]
                lock = take.resource.id
                yield Witness(node, where, lock=lock, since=take.resource.line or root.line, take=take)
        yield from _queues(root.function, facts)
        if not _ends(root.function):
            yield from _writes(root.function, (), facts, set())


def _queues(fn: Function, facts: Facts) -> Iterator[Witness]:
    """Uses of a queue.Queue in the handler."""
    for call in fn.calls:
        if short_name(call.func) not in ("put", "get", "put_nowait", "get_nowait") or not isinstance(
            call.func, ast.Attribute
        ):
            continue
        resource = facts.module.resource(call.func.value, fn)
        if resource is not None and resource.kind == "Queue" and resource.sure:
            yield Witness(call, fn, "queues", since=resource.line or call.lineno, resource=resource)


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
                short_name(call.func) in LOGS
                and name.split(".")[0].lower() in ("logging", "log", "logger", "_log", "_logger")
            )
        ):
            steps = (*way, (fn, call))
            yield Witness(call, fn, "writes", steps=steps)
            return
    for effect in facts.runs(fn):
        assert effect.callee is not None
        yield from _writes(effect.callee, (*way, (fn, effect.node)), facts, visited)
