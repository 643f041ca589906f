"""A bounded queue that is filled before the threads or tasks that empty it are started."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout, runs_now, text_of
from paceline.concurrency.check.rules.rule import Witness, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing, last_line, parent
from paceline.concurrency.check.threads.roots import in_loop

TAKES = ("get", "get_nowait")


def find(facts: Facts) -> Iterator[Witness]:
    """Report bounded queues that a function fills before it starts what empties them, or empties them itself."""
    takers: dict[str, list[tuple[Function, ast.Call]]] = {}
    for fn in facts.module.functions:
        for call in fn.calls:
            if queue := queue_of(call, TAKES, fn, facts):
                takers.setdefault(queue, []).append((fn, call))
    for fn in facts.module.functions if takers else ():
        for call, put, queue in _fills(fn, facts):
            if queue not in takers or _has_room(fn, queue):
                continue
            late = _started_after(call, fn, takers[queue], facts)
            if late is not None:
                yield _report(fn, call, put, queue, *late)
                break


def _fills(fn: Function, facts: Facts) -> Iterator[tuple[ast.Call, ast.Call, str]]:
    """The calls by which a function fills a bounded queue in a loop, and the puts, which a callee may make."""
    for effect in facts.walker.effects(fn):
        call, callee = effect.node, effect.callee
        if not isinstance(call, ast.Call) or has_timeout(call, "put"):
            continue
        if in_loop(call, fn) and (queue := queue_of(call, ("put",), fn, facts, bounded=True)):
            yield call, call, queue
        elif callee is not None and callee is not fn and runs_now(effect) and not effect.perhaps:
            for put in callee.calls:
                queue = queue_of(put, ("put",), callee, facts, bounded=True)
                if queue and in_loop(put, callee) and not has_timeout(put, "put"):
                    yield call, put, queue


def _has_room(fn: Function, queue: str) -> bool:
    """Whether a queue was made for all that is put into it."""
    binding = fn.bound.get(queue.rpartition(".")[2])
    return binding is not None and any(
        isinstance(n, ast.Call) and short_name(n.func) == "len" for n in ast.walk(binding)
    )


def _started_after(
    fill: ast.Call, fn: Function, takers: list[tuple[Function, ast.Call]], facts: Facts
) -> tuple[Function, int] | None:
    """Who empties a queue, if nothing does before a function has filled it, and the line where that begins."""
    begun = [r for r in facts.roots if r.kind in ("thread", "process", "task")]
    begins: list[tuple[Function, int]] = []
    for taker, take in takers:
        roots = [r for r in begun if r.function is taker]
        if taker is fn and not roots:
            loop = enclosing(take, ast.For, ast.AsyncFor, ast.While)
            both = isinstance(loop, ast.For | ast.AsyncFor | ast.While) and loop.lineno <= fill.lineno
            if both or take.lineno <= fill.lineno:
                return None
            begins.append((taker, take.lineno))
            continue
        last = last_line(fn.node) or max((r.line for r in roots), default=0)
        if not roots or any(not fn.line <= r.line <= last for r in roots) or _called(taker, facts):
            return None
        root_lines = [r.line for r in roots]
        lines = root_lines if roots[0].kind == "task" else [c.lineno for c in fn.calls if _starts(c)] or root_lines
        if min(lines) <= fill.lineno:
            return None
        begins.append((taker, min(lines)))
    return begins[0] if begins else None


def _called(taker: Function, facts: Facts) -> bool:
    """Whether a function is also called rather than only started."""
    callers = facts.callers.get(id(taker), ())
    return any(isinstance(parent(event.effect.node), ast.Await) for _, event in callers)


def _starts(call: ast.Call) -> bool:
    """Whether a call starts a thread or process."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "start" and not call.args


def _report(fn: Function, fill: ast.Call, put: ast.Call, queue: str, taker: Function, line: int) -> Witness:
    itself = taker is fn
    return Witness(
        fill,
        fn,
        queue=queue,
        by="," if fill is put else f", by {text_of(fill)},",
        end="empties it itself only afterwards"
        if itself
        else f"starts {taker.qualname}, which empties it, only afterwards",
        line=line,
        who="thread A",
        put=put,
        action="take the items" if itself else f"start {taker.qualname}",
    )
