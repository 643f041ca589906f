"""Items of queues that are not marked as done."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.duties import Duty, Skipped
from paceline.concurrency.check.rules.rule import Witness, queue_of, queue_uses
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    following,
    short_name,
    statement_of,
)
from paceline.concurrency.check.threads.roots import in_loop


def task_not_done(facts: Facts) -> Iterator[Witness]:
    """Report joins of queues without any task_done(), and paths on which an item is taken and not marked as done."""
    joins = {use.of: (use.fn, use.call) for use in queue_uses(facts, ("join",))}
    if not joins:
        return
    gets = [use for use in queue_uses(facts, ("get",)) if use.of in joins]
    takers = list(dict.fromkeys((use.fn, use.of) for use in gets))
    done = any(short_name(c.func) == "task_done" for c, _ in facts.module.calls)
    for queue in dict.fromkeys(queue for _, queue in takers if not done):
        fn, join = joins[queue]
        yield Witness(join, fn, "never", queue=queue)
    for queue, (fn, join) in joins.items() if done else ():
        if (cancel := _cancelled_before(join, fn, [f for f, q in takers if q == queue], facts)) is not None:
            yield Witness(join, fn, "cancelled", queue=queue, cancel=cancel)
    for fn, queue in takers if done else ():
        yield from _early(fn, queue, joins[queue][1], facts) or _skipped(fn, queue, joins[queue][1], facts)


def _cancelled_before(join: ast.Call, fn: Function, takers: list[Function], facts: Facts) -> ast.Call | None:
    """Where a function cancels its workers, the only ones that mark items as done, before it joins their queue."""
    begun = {id(r.function) for r in facts.roots if r.kind == "task"}
    cancels = [c for c in fn.calls if short_name(c.func) == "cancel" and not c.args and c.lineno < join.lineno]
    looped = [c for c in cancels if in_loop(c, fn) and not in_loop(join, fn)]
    return looped[0] if looped and takers and all(id(f) in begun for f in takers) else None


def _early(fn: Function, queue: str, join: ast.Call, facts: Facts) -> list[Witness]:
    """An item that is marked as done before it is worked on: `item = q.get(); q.task_done(); work(item)`."""
    for target, value in fn.assigns:
        took = isinstance(value, ast.Call) and queue_of(value, ("get", "get_nowait"), fn, facts) == queue
        if not took or not isinstance(target, ast.Name):
            continue
        block = _block(value)
        after = block[1:] if block else []
        marks = [s for s in after if isinstance(s, ast.Expr) and _marks(s.value, queue, fn, facts)]
        used = [c for s in after for c in ast.walk(s) if isinstance(c, ast.Call) and _given(c, target.id)]
        if marks and used and all(c.lineno > marks[0].lineno for c in used) and not isinstance(used[0].func, ast.Name):
            return [Witness(marks[0], fn, "early", queue=queue, use=used[0], join=join)]
    return []


def _block(node: ast.AST) -> list[ast.stmt]:
    """The statement of an expression and those that follow it in the same block."""
    statement = statement_of(node)
    return [statement, *following(statement)] if statement is not None else []


def _marks(node: ast.expr, queue: str, fn: Function, facts: Facts) -> bool:
    return isinstance(node, ast.Call) and queue_of(node, ("task_done",), fn, facts) == queue


def _given(call: ast.Call, name: str) -> bool:
    """Whether a call gets the item, or is a method of it."""
    arguments = [*call.args, *(k.value for k in call.keywords), getattr(call.func, "value", call.func)]
    return any(isinstance(n, ast.Name) and n.id == name for value in arguments for n in ast.walk(value))


def _skipped(fn: Function, queue: str, join: ast.Call, facts: Facts) -> Iterator[Witness]:
    """The first way on which a loop that marks items as done does not do it, and the first exception that skips it."""
    marks = {
        id(effect.node)
        for effect in facts.walker.effects(fn)
        if short_name(getattr(effect.node, "func", effect.node)) == "task_done"
        or (effect.callee is not None and any(short_name(c.func) == "task_done" for c in effect.callee.calls))
    }
    # The items are passed on, and marked where they arrive.
    if not marks:
        return
    duty = Duty(fn, lambda call: id(call) in marks)
    gets = duty.steps(lambda call: queue_of(call, ("get",), fn, facts) == queue and in_loop(call, fn))
    ways = sorted(duty.skipped_after(gets), key=lambda skipped: (skipped.raised, skipped.node.line))
    for skipped in ways[:1]:
        yield _report_skipped(fn, skipped, queue, join)


def _report_skipped(fn: Function, skipped: Skipped, queue: str, join: ast.Call) -> Witness:
    line = skipped.node.line
    at = skipped.node.syntax or ast.Pass(lineno=line, col_offset=0)
    how, sure, continues = "is not marked as done on the way that ends here", 0.8, "continues"
    if skipped.raised:
        how = "is not marked as done if this raises" + ("" if skipped.caught else ", which ends the worker")
        sure, continues = 0.6, "raises"
    return Witness(at, fn, "skipped", confidence=sure, queue=queue, how=how, join=join, line=line, continues=continues)
