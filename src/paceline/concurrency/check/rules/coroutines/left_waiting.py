"""Futures that nothing completes once the task that answers them has ended."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import is_limited
from paceline.concurrency.check.rules.futures import attribute_of, makes_future, parts
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.graph import catches_all
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import enclosing, parent
from paceline.concurrency.check.threads.accesses import GROWS

RECEIVES = ("data_received", "datagram_received")
#: What a function may do with a container of futures without looking at those that are left.
BY_KEY = {"get", "setdefault", "popleft", "append", "appendleft", "add", "remove", "discard"}


def find(facts: Facts) -> Iterator[Witness]:
    """Report containers of awaited futures of which only a loop that may end completes any."""
    for cls in facts.module.classes.values():
        methods = [fn for fn in facts.module.functions if fn.cls is cls and fn.self_name]
        for attribute in cls.values:
            waits = [wait for fn in methods if (wait := _kept_and_awaited(attribute, fn)) is not None]
            if not waits or any(_sees_all(attribute, fn) for fn in methods):
                continue
            answers = [fn for fn in methods if any(_answers(c, attribute, fn) for c in fn.calls)]
            ends = [end for fn in answers if (end := _ends(fn, cls, facts)) is not None]
            if answers and len(ends) == len(answers):
                yield _report(*ends[0], attribute, cls, waits[0])


def _kept_and_awaited(attribute: str, fn: Function) -> tuple[Function, ast.AST] | None:
    """Where a coroutine awaits, without a timeout, a future that it has put into an attribute of its object."""
    container = f"{fn.self_name}.{attribute}"
    futures = {dotted(t) for t, v in fn.assigns if makes_future(v)}
    entries = {dotted(part) for t, v in fn.assigns if dotted(t) == f"{container}[]" for part in parts(v)}
    entries |= {
        dotted(part)
        for call in fn.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in GROWS and dotted(call.func.value) == container
        for argument in call.args
        for part in parts(argument)
    }
    waits = (w for w in fn.awaits if dotted(w.value) in futures & entries - {""} and not is_limited(w))
    return next(((fn, wait) for wait in waits), None)


def _sees_all(attribute: str, fn: Function) -> bool:
    """Whether a function does more with the container than to store and take single futures: it may fail the rest."""
    for node in fn.attributes:
        if node.attr != attribute or not isinstance(node.ctx, ast.Load):
            continue
        up = parent(node)
        if isinstance(up, ast.Subscript) and up.value is node:
            continue
        call = parent(up) if isinstance(up, ast.Attribute) else None
        is_method = isinstance(up, ast.Attribute) and isinstance(call, ast.Call) and call.func is up
        if is_method and (up.attr in BY_KEY or (up.attr == "pop" and call.args)):  # type: ignore[union-attr]
            assert call is not None
            looped = enclosing(call, ast.While)
            if isinstance(looped, ast.While) and any(dotted(n) == dotted(node) for n in ast.walk(looped.test)):
                return True  # `while self.waiting: self.waiting.popleft()`
            continue
        if isinstance(up, ast.Compare) or (isinstance(up, ast.Call) and short_name(up.func) == "len"):
            continue
        if isinstance(up, ast.If | ast.UnaryOp):
            continue
        return True
    return any(isinstance(n.ctx, ast.Store) and n.attr == attribute and fn.name != "__init__" for n in fn.attributes)


def _answers(call: ast.Call, attribute: str, fn: Function) -> bool:
    """Whether a call completes a future out of this container."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr == "set_result"
    return named and attribute_of(call.func.value, fn) == attribute  # type: ignore[attr-defined]


def _ends(fn: Function, cls: Class, facts: Facts) -> tuple[Function, ast.AST] | None:
    """Where the loop in which a function answers may end, or what is called while a connection is open."""
    if fn.name in RECEIVES and any(base.rpartition(".")[2].endswith("Protocol") for base in cls.bases):
        return fn, fn.node
    for caller, call in ((fn, None), *((c, e.effect.node) for c, e in facts.callers.get(id(fn), ()))):
        sets = [c for c in caller.calls if short_name(c.func) == "set_result"] if call is None else [call]
        for at in sets:
            loop = enclosing(at, ast.While, ast.AsyncFor)
            if not caller.asynchronous or not isinstance(loop, ast.While | ast.AsyncFor):
                continue
            leaves = (n for n in ast.walk(loop) if isinstance(n, ast.Break | ast.Return))
            if (exit_node := next(leaves, None)) is not None:
                return caller, exit_node
            if isinstance(loop, ast.AsyncFor) or not _holds(loop):
                return caller, loop
    return None


def _holds(loop: ast.While) -> bool:
    """Whether a loop continues whatever is raised in it."""
    tried = [s for s in loop.body if isinstance(s, ast.Try)]
    return len(loop.body) == 1 and bool(tried) and any(catches_all(h) for h in tried[0].handlers)


def _report(fn: Function, at: ast.AST, attribute: str, cls: Class, waiter: tuple[Function, ast.AST]) -> Witness:
    wait_line = getattr(waiter[1], "lineno", waiter[0].line)
    return Witness(
        at, fn, cls=cls, attribute=attribute, waiter=waiter, wait_line=wait_line, line=getattr(at, "lineno", fn.line)
    )
