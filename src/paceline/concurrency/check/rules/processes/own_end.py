"""A pipe that is read to its end by a process which still has its writing end open."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.forks import FORKS, on_child_side
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.syntax.tree import enclosing, parent
from paceline.concurrency.check.values.bindings import start_arguments

RECEIVES = ("recv", "recv_bytes")


def find(facts: Facts) -> Iterator[Witness]:
    """Report loops that end with the end of a pipe whose writing end the same process never closes."""
    for fn in facts.module.functions:
        for reading, writing, pipe in _pipes(fn, facts):
            if dotted(pipe.func) == "os.pipe":
                fork = next((c for c in fn.calls if facts.module.canonical(c.func) in FORKS), None)
                read = _read_to_end(reading, fn) if fork is not None else None
                closes = [c for c in fn.calls if _closes(c, writing)]
                closed = fork is not None and not all(on_child_side(c, fork) for c in closes)
            else:
                fork = _given(writing, fn, facts)
                read = _received_to_end(reading, fn) if fork is not None else None
                closed = any(dotted(c.func) == f"{writing}.close" for c in fn.calls)
            entered = any(dotted(item.context_expr) == writing for block in fn.withs for item in block.items)
            if fork is not None and read is not None and not closed and not entered and read.lineno > fork.lineno:
                yield Witness(read, fn, writing=writing, fork=fork)


def _pipes(fn: Function, facts: Facts) -> Iterator[tuple[str, str, ast.Call]]:
    """The pairs of ends that a function makes: the name of either end as the reading one."""
    for node in {id(t): t for t in (parent(n) for n in fn.stores) if isinstance(t, ast.Tuple)}.values():
        pipe = getattr(parent(node), "value", None)
        names = [n.id for n in node.elts if isinstance(n, ast.Name)]
        if not isinstance(pipe, ast.Call) or len(names) != 2 or len(node.elts) != 2:
            continue
        if facts.module.canonical(pipe.func) == "os.pipe":
            yield names[0], names[1], pipe
        elif facts.module.constructed_kind(pipe, fn) == "Pipe":
            yield names[0], names[1], pipe
            if not pipe.args and not pipe.keywords:
                yield names[1], names[0], pipe


def _given(writing: str, fn: Function, facts: Facts) -> ast.Call | None:
    """The child process that a function gives the writing end."""
    processes = (c for c in fn.calls if facts.module.constructed_kind(c, fn) == "Process")
    return next((c for c in processes if any(dotted(a) == writing for a in start_arguments(c, fn))), None)


def _received_to_end(reading: str, fn: Function) -> ast.Call | None:
    """A `recv()` in a loop that only EOFError ends."""
    for call in fn.calls:
        loop, tried = enclosing(call, ast.While), enclosing(call, ast.Try)
        received = isinstance(call.func, ast.Attribute) and call.func.attr in RECEIVES
        if not received or dotted(call.func.value) != reading or not isinstance(loop, ast.While):  # type: ignore[attr-defined]
            continue
        handlers = tried.handlers if isinstance(tried, ast.Try) and isinstance(loop.test, ast.Constant) else []
        caught = [h for h in handlers if h.type is not None and "EOFError" in ast.unparse(h.type)]
        ends = [n for n in ast.walk(loop) if isinstance(n, ast.Break | ast.Return)]
        if caught and all(isinstance(enclosing(n, ast.ExceptHandler), ast.ExceptHandler) for n in ends):
            return call
    return None


def _read_to_end(reading: str, fn: Function) -> ast.Call | None:
    """A read of a descriptor in a loop, or of all that comes."""
    for call in fn.calls:
        if not call.args or dotted(call.args[0]) != reading:
            continue
        if dotted(call.func) == "os.read" and enclosing(call, ast.While) is not None:
            return call
        opened = dotted(call.func) in ("os.fdopen", "open")
        method = parent(call)
        if opened and isinstance(method, ast.Attribute) and method.attr == "read":
            return call
    return None


def _closes(call: ast.Call, end: str) -> bool:
    return dotted(call.func) == "os.close" and bool(call.args) and dotted(call.args[0]) == end
