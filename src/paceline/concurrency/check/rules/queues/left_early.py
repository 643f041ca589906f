"""A consumer that takes a pause of its producer for the end, while the producer waits for room."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.rules.rule import Witness, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.threads.roots import in_loop


def find(facts: Facts) -> Iterator[Witness]:
    """Report threads that leave the loop in which they read a bounded queue once it was empty for a while."""
    for fn in {id(r.function): r.function for r in facts.roots if r.kind == "thread"}.values():
        for call in fn.calls:
            queue = queue_of(call, ("get",), fn, facts, bounded=True)
            tried, loop = enclosing(call, ast.Try), enclosing(call, ast.While)
            if not queue or not has_timeout(call, "get") or not isinstance(loop, ast.While):
                continue
            handlers = tried.handlers if isinstance(tried, ast.Try) else []
            empty = [h for h in handlers if h.type is not None and short_name(h.type) in ("Empty", "Exception")]
            exits = [h for h in empty if _leaves(h)]
            endless = isinstance(loop.test, ast.Constant)
            put = _put(queue, fn, facts)
            if exits and endless and put is not None and not _ends(loop, exits[0]):
                yield _report(fn, exits[0], queue, *put)


def _leaves(handler: ast.ExceptHandler) -> bool:
    return len(handler.body) > 0 and isinstance(handler.body[-1], ast.Break | ast.Return)


def _ends(loop: ast.While, handler: ast.ExceptHandler) -> bool:
    """Whether the loop has another end: an end mark, a flag."""
    inside = {id(n) for n in ast.walk(handler)}
    return any(isinstance(n, ast.Break | ast.Return) and id(n) not in inside for n in ast.walk(loop))


def _put(queue: str, consumer: Function, facts: Facts) -> tuple[Function, ast.Call] | None:
    """Where a loop puts into the queue and waits for room."""
    for fn in facts.module.functions:
        for call in fn.calls if fn is not consumer else ():
            if queue_of(call, ("put",), fn, facts) == queue and in_loop(call, fn) and not has_timeout(call, "put"):
                return fn, call
    return None


def _report(fn: Function, handler: ast.ExceptHandler, queue: str, producer: Function, put: ast.Call) -> Witness:
    return Witness(handler.body[-1], fn, queue=queue, producer=producer, put=put, handler=handler)
