"""A child process that is joined before its queue is read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.values.bindings import start_arguments

READS = ("get", "get_nowait", "recv", "recv_bytes")
WRITES = ("put", "put_nowait", "send", "send_bytes", "close")


def find(facts: Facts) -> Iterator[Witness]:
    """Report joins of a child before the first read of the queue or pipe that it writes to."""
    for fn in facts.module.functions:
        started = [c for c in fn.calls if facts.module.constructed_kind(c, fn) == "Process"]
        for queue, start in _given(started, fn, facts).items():
            join = next((c for c in fn.calls if c.lineno > start.lineno and _joins(c, fn, facts)), None)
            if join is None:
                continue
            uses = [c for c in fn.calls if c not in started and _touches(c, queue)]
            reads = [c.lineno for c in uses if _reads(c, queue, fn, facts)]
            if any(c.lineno <= join.lineno for c in uses if c.lineno not in reads and short_name(c.func) not in WRITES):
                continue
            if reads and min(reads) > join.lineno:
                yield Witness(join, fn, queue=queue, read=min(reads), started=start)


def _given(started: list[ast.Call], fn: Function, facts: Facts) -> dict[str, ast.Call]:
    """The parent's queue or pipe end -> the call that passes it, or the other end, to a child process."""
    by_queue: dict[str, ast.Call] = {}
    for call in started:
        for value in start_arguments(call, fn):
            resource = facts.module.resource(value, fn)
            if resource is not None and resource.kind == "ProcessQueue":
                by_queue[dotted(value)] = call
            if resource is not None and resource.kind == "Pipe" and isinstance(value, ast.Name):
                ends = [n for n, v in fn.bound.items() if v is fn.bound.get(value.id) and n != value.id]
                by_queue.update(dict.fromkeys(ends, call))
    return by_queue


def _joins(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call joins a process without a timeout."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "join" or has_timeout(call, "join") or call.args:
        return False
    resource = facts.module.resource(call.func.value, fn)
    if resource is not None:
        return resource.kind == "Process"
    if not isinstance(call.func.value, ast.Name):
        return False
    for loop in fn.loops:
        target = getattr(loop, "target", None)
        if isinstance(target, ast.Name) and target.id == call.func.value.id and isinstance(loop.iter, ast.Name):  # type: ignore[union-attr]
            return _holds_processes(loop.iter.id, fn, facts)  # type: ignore[union-attr]
    return False


def _holds_processes(name: str, fn: Function, facts: Facts) -> bool:
    """Whether this function fills the list with processes."""
    start = fn.bound.get(name)
    inside = [n for n in ast.walk(start) if isinstance(n, ast.Call)] if start is not None else []
    for call in fn.calls:
        if dotted(call.func) == f"{name}.append" and call.args:
            argument = call.args[0]
            resource = facts.module.resource(argument, fn)
            if resource is not None and resource.kind == "Process":
                return True
            inside += [argument] if isinstance(argument, ast.Call) else []
    return any(facts.module.constructed_kind(call, fn) == "Process" for call in inside)


def _touches(call: ast.Call, queue: str) -> bool:
    """Whether a call uses the queue."""
    if isinstance(call.func, ast.Attribute) and dotted(call.func.value) == queue:
        return True
    return any(dotted(a) == queue for a in (*call.args, *(k.value for k in call.keywords)))


def _reads(call: ast.Call, queue: str, fn: Function, facts: Facts) -> bool:
    """Whether a call reads the queue, or passes it to a function that does."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in READS and dotted(call.func.value) == queue:
        return True
    callee = facts.module.callee(call, fn)
    for name in callee.parameters if callee is not None else ():
        argument = facts.module.objects.argument_at(callee, name, call)  # type: ignore[arg-type]
        if argument is not None and dotted(argument.value) == queue:
            return any(dotted(c.func) in [f"{name}.{read}" for read in READS] for c in callee.calls)  # type: ignore[union-attr]
    return False
