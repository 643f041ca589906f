"""Items of queues that are not marked as done, not answered, or without their result."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from paceline.concurrency.check.flow.duties import Duty, Skipped, one_of
from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.libraries.catalogue import EVENTS, PUTS
from paceline.concurrency.check.rules.rule import Witness, queue_of, queue_uses
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    awaited,
    dotted,
    enclosing,
    following,
    parent,
    short_name,
    statement_of,
    user_of,
)
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.values.sources import makes_future


def task_not_done(facts: Facts) -> Iterator[Witness]:
    """Report joins of queues without any task_done(), and paths on which an item is taken and not marked as done."""
    joins = {use.of: (use.fn, use.call) for use in queue_uses(facts, ("join",))}
    if not joins:
        return
    gets = [use for use in queue_uses(facts, ("get",)) if use.of in joins]
    takers = list(dict.fromkeys((use.fn, use.of) for use in gets))
    # Without a single `task_done` in the file the join is at fault, rather than each of the takers.
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


TAKES = ("get", "get_nowait", "popleft", "pop", "recv")
ANSWERS = ("set", "set_result")
FAILS = ("set_exception", "cancel", "set_error", "fail", "abort")
ASKS = ("done", "cancelled", "is_set")
HANDS_ON = ("put", "put_nowait", "append", "appendleft", "submit", "add", "send")


def unanswered(facts: Facts) -> Iterator[Witness]:
    """Report worker loops in which a path does not answer the request that it took."""
    waits = _waits(facts)
    for fn in facts.module.functions if waits else ():
        for take, names in _taken(fn):
            answers = [c for c in fn.calls if c.lineno >= take.lineno and _answers(c, names)]
            kind = waits.get(short_name(answers[0].func)) if answers else None
            # An event that others made may be waited for by no one, or with a timeout.
            if kind is None or not _made_here(facts, short_name(answers[0].func)):
                continue
            duty = Duty(fn, partial(_meets, names=names))
            starts = duty.steps(one_of([take]))
            ways = sorted(duty.skipped_after(starts), key=lambda s: (s.raised, s.node.line))
            for skipped in (ways or list(duty.failed_in(starts, answers)))[:1]:
                yield _report(fn, take, answers[0], skipped, kind)


def _waits(facts: Facts) -> dict[str, tuple[Function, ast.expr]]:
    """How an answer is given -> where one is waited for without a timeout."""
    waits: dict[str, tuple[Function, ast.expr]] = {}
    for use in facts.uses(("wait",), EVENTS):
        if not use.call.args and not has_timeout(use.call, "wait"):
            waits.setdefault("set", (use.fn, use.call))
    for fn in facts.module.functions:
        results = [c for c in fn.calls if short_name(c.func) == "result" and not c.args and not c.keywords]
        awaits = [w for w in fn.awaits if isinstance(w.value, ast.Name) and makes_future(fn.bound.get(w.value.id))]
        for wait in (*results, *awaits):
            waits.setdefault("set_result", (fn, wait))
    return waits


def _made_here(facts: Facts, answer: str) -> bool:
    """Whether this file makes the event or future of a request, and passes it on, or a request brings its own."""
    for fn in facts.module.functions:
        for target, value in fn.assigns:
            kind = facts.module.constructed_kind(value, fn) if isinstance(value, ast.Call) else None
            if not (makes_future(value) if answer == "set_result" else kind in EVENTS):
                continue
            passed = any(dotted(n) == dotted(target) and _passed(n) for n in (*fn.names, *fn.attributes))
            if passed or (isinstance(target, ast.Attribute) and fn.name == "__init__"):
                return True
    return False


def _passed(node: ast.expr) -> bool:
    """Whether this is an argument of a call, or a part of one."""
    up = parent(node)
    while isinstance(up, ast.Tuple | ast.List | ast.Dict | ast.keyword):
        up = parent(up)
    return isinstance(up, ast.Call) and up.func is not node


def _taken(fn: Function) -> Iterator[tuple[ast.Call, set[str]]]:
    """The calls in a loop that take a request out of a queue, and the names that it gets."""
    for statement in {id(p): p for c in fn.calls if (p := _assignment(c)) is not None}.values():
        value = awaited(statement.value)
        target = statement.targets[0]
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        if isinstance(value, ast.Call) and names and in_loop(value, fn):
            yield value, names


def _assignment(call: ast.Call) -> ast.Assign | None:
    """The assignment of what a call takes out of a queue."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in TAKES or len(call.args) > 1:
        return None
    up = user_of(call)
    return up if isinstance(up, ast.Assign) and up.value in (call, parent(call)) else None


def _answers(call: ast.Call, names: set[str]) -> bool:
    """Whether a call answers a request: `done.set()`, `request.future.set_result(x)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ANSWERS:
        return False
    plain = call.func.attr != "set" or not call.args
    return plain and dotted(call.func.value).partition(".")[0] in names


def _meets(call: ast.Call, names: set[str]) -> bool:
    """Whether a call answers a request, says that it failed, asks whether that is needed, or hands it on to others."""
    if _answers(call, names):
        return True
    name = short_name(call.func)
    if isinstance(call.func, ast.Attribute) and name in (*FAILS, *ASKS):
        return dotted(call.func.value).partition(".")[0] in names
    arguments = {dotted(a).partition(".")[0] for a in (*call.args, *(k.value for k in call.keywords))}
    return bool(arguments & names) and (name in HANDS_ON or name.startswith(("_", "handle", "process", "on_")))


def _report(
    fn: Function, take: ast.Call, answer: ast.Call, skipped: Skipped, waiter: tuple[Function, ast.expr]
) -> Witness:
    line = skipped.node.line
    how, continues = f"on the way over line {line}", "continues without an answer"
    if skipped.raised:
        how, continues = f"if line {line} raises", "raises, and does not answer"
    return Witness(
        answer, fn, how=how, continues=continues, take=take, waiter=waiter, wait_line=waiter[1].lineno, skipped=skipped
    )


def result_lost(facts: Facts) -> Iterator[Witness]:
    """Report workers that continue without a result, where one for each job is waited for."""
    for fn in facts.module.functions:
        for jobs, results, get in _counted(fn, facts):
            puts = [*queue_uses(facts, PUTS, results), *queue_uses(facts, PUTS, jobs)]
            for worker in dict.fromkeys(put.fn for put in puts if put.of == results and put.fn is not fn):
                takes = [
                    t.call for t in queue_uses(facts, ("get",), jobs) if t.fn is worker and in_loop(t.call, worker)
                ]
                duty = Duty(worker, one_of(put.call for put in puts if put.fn is worker))
                ways = duty.skipped_after(duty.steps(one_of(takes)))
                # An exception that is not caught ends the worker, with a traceback.
                lost = sorted((s for s in ways if not s.raised or s.caught), key=lambda s: (s.raised, s.node.line))
                for way in lost[:1]:
                    how = "if this raises, which is caught" if way.raised else "on the way that ends here"
                    at = way.node.syntax or worker.node
                    yield Witness(at, worker, results=results, how=how, caller=fn, get=get, skipped=way)


def _counted(fn: Function, facts: Facts) -> Iterator[tuple[str, str, ast.Call]]:
    """The queues of which a function fills one in a loop, and empties the other in a loop of as many turns."""
    put, got = dict[str, str](), dict[str, tuple[str, ast.Call]]()
    for call in fn.calls:
        loop = enclosing(call, ast.For)
        over = _over(loop.iter) if isinstance(loop, ast.For) else ""
        if over and (queue := queue_of(call, PUTS, fn, facts)):
            put.setdefault(queue, over)
        elif over and (queue := queue_of(call, ("get",), fn, facts)) and not has_timeout(call, "get"):
            got.setdefault(queue, (over, call))
    for jobs, one in put.items():
        yield from ((jobs, results, get) for results, (two, get) in got.items() if one == two and jobs != results)


def _over(node: ast.expr) -> str:
    """What a loop goes over: `items` of `enumerate(items)` and `range(len(items))`."""
    while isinstance(node, ast.Call) and short_name(node.func) in ("enumerate", "range", "len") and len(node.args) == 1:
        node = node.args[0]
    return ast.unparse(node)
