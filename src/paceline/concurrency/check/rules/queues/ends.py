"""Ends of queues: found empty, left early, too few end marks, seconds that are no timeout."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect, has_timeout
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS, PUT_ITEM, PUTS, THREAD_QUEUES
from paceline.concurrency.check.rules.endings import ends_by
from paceline.concurrency.check.rules.rule import Witness, queue_of, queue_uses
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import around, enclosing, is_within, keyword, last_line, short_name
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.threads.shared_state import BEGINNINGS


def empty_then_get(facts: Facts) -> Iterator[Witness]:
    """Report blocking gets after a check of the same queue, in functions that workers run."""
    for fn in facts.module.functions:
        if not any(t.startswith(("thread:", "process:")) for t in facts.reached.get(id(fn), ())):
            if not fn.asynchronous and fn.cls is not None and fn.name not in BEGINNINGS:
                yield from _left_if_empty(fn, facts)
                yield from _emptied_beside(fn, facts)
            continue
        for effect in facts.walker.effects(fn):
            if effect.kind == "wait" and not effect.timeout and effect.waits_for == PUT_ITEM:
                test = _asked(effect, fn, facts)
                if test is not None and not facts.held_at(effect.node, fn):
                    yield Witness(effect.node, fn, line=test, effect=effect)


def _left_if_empty(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if self.items.empty(): return`, and later `self.items.get()`, of a queue for threads that the object keeps."""
    for test in fn.tests:
        asks = test.test if isinstance(test, ast.If) and isinstance(test.body[-1], ast.Return) else None
        if not isinstance(asks, ast.Call) or short_name(asks.func) != "empty":
            continue
        queue = queue_of(asks, ("empty",), fn, facts)
        gets = (e for e in facts.walker.effects(fn) if e.kind == "wait" and not e.timeout and e.line > test.lineno)
        get = next((e for e in gets if e.resource is not None and e.resource.id == queue and "." in queue), None)
        threads = get is not None and get.resource is not None and get.resource.kind == "Queue"
        # A lock over the check and the get keeps other takers out in between.
        if get is not None and threads and not facts.held_at(get.node, fn):
            yield Witness(get.node, fn, line=test.lineno, effect=get)


def _emptied_beside(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`while not self.items.empty(): self.items.get()` while a thread takes items from the same queue."""
    for effect in facts.walker.effects(fn):
        if effect.kind != "wait" or effect.timeout or effect.waits_for != PUT_ITEM or effect.resource is None:
            continue
        line = _asked(effect, fn, facts)
        takes = queue_uses(facts, ("get", "get_nowait"), effect.resource.id)
        by_thread = any(facts.threads_of(take.fn) for take in takes)
        if line is not None and by_thread and not facts.held_at(effect.node, fn):
            yield Witness(effect.node, fn, line=line, effect=effect)


def _asked(effect: Effect, fn: Function, facts: Facts) -> int | None:
    """The line of the check around a get."""
    asks = {
        id(u.call) for u in facts.uses(("empty", "qsize", "full")) if effect.resource and u.of == effect.resource.id
    }
    tests: Iterator[ast.While | ast.If] = around(effect.node, ast.While, ast.If)
    return next((test.lineno for test in tests if any(id(node) in asks for node in ast.walk(test.test))), None)


ALIVE = ("is_alive", "isAlive")
TAKES = ("get", "get_nowait", "empty", "qsize")


def ended_then_empty(facts: Facts) -> Iterator[Witness]:
    """Report loops over a queue that end where it was found empty and no producer is alive."""
    for fn in facts.module.functions:
        for test in fn.tests:
            if isinstance(test, ast.While):
                yield from _while_alive(test, fn, facts)
                continue
            if not isinstance(test, ast.If) or (check := _asks_for_life(test, fn)) is None:
                continue
            empty = _found_empty(test, fn, facts)
            if empty is not None and not _checks_again(test, fn, facts):
                yield Witness(test, fn, queue=empty[0], line=empty[1], check=check)
                break


def _while_alive(loop: ast.While, fn: Function, facts: Facts) -> Iterator[Witness]:
    """`while worker.is_alive(): queue.get(timeout=1)`: items that it has put at last stay in the queue."""
    test, module = loop.test, facts.module
    owner = module.type_of(test.value, fn) if isinstance(test, ast.Attribute) else None
    helper = module.callee(test, fn) if isinstance(test, ast.Call) else owner.method(test.attr) if owner else None  # type: ignore[attr-defined]
    asked = [r.value for r in helper.returns if r.value] if helper else [test] if isinstance(test, ast.Call) else []
    checks = [n for part in asked for n in ast.walk(part) if isinstance(n, ast.Call)]
    check = next((c for c in checks if short_name(c.func) in ALIVE), None)
    takes = [(c, q) for c in fn.calls if (q := queue_of(c, TAKES, fn, facts))]
    if check is not None and takes and all(is_within(c, loop) for c, _ in takes):
        get, queue = takes[0]
        yield Witness(loop, fn, "alive", queue=queue, line=get.lineno, check=check)


def _asks_for_life(test: ast.If, fn: Function) -> ast.Call | None:
    """The `is_alive()` of a test that ends the loop where nothing is alive any more."""
    value = fn.bound.get(test.test.id, test.test) if isinstance(test.test, ast.Name) else test.test
    checks = [n for n in ast.walk(value) if isinstance(n, ast.Call) and short_name(n.func) in ALIVE]
    negated = any(isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not) for n in ast.walk(value))
    last = test.body[-1]
    stops = isinstance(last, ast.Raise) and last.exc is not None and "StopIteration" in ast.unparse(last.exc)
    ends = stops or isinstance(last, ast.Break | ast.Return)
    return checks[0] if len(checks) == 1 and negated and ends and enclosing(test, ast.While, ast.For) else None


def _found_empty(test: ast.If, fn: Function, facts: Facts) -> tuple[str, int] | None:
    """The queue that was found empty before a test, and where: by an exception, or by asking it."""
    handler = enclosing(test, ast.ExceptHandler)
    if isinstance(handler, ast.ExceptHandler) and handler.type is not None and "Empty" in ast.unparse(handler.type):
        tried = getattr(handler, "up", None)
        gets = [n for s in getattr(tried, "body", ()) for n in ast.walk(s) if isinstance(n, ast.Call)]
        return next(((q, c.lineno) for c in gets if (q := queue_of(c, ("get", "get_nowait"), fn, facts))), None)
    around = enclosing(test, ast.If)
    if isinstance(around, ast.If) and any(test is s for s in around.orelse):
        asks = [n for n in ast.walk(around.test) if isinstance(n, ast.Call)]
        return next(((q, c.lineno) for c in asks if (q := queue_of(c, ("empty", "qsize"), fn, facts))), None)
    return None


def _checks_again(test: ast.If, fn: Function, facts: Facts) -> bool:
    """Whether the queue is asked in the test or in its body, or emptied after the loop."""
    loop = enclosing(test, ast.While, ast.For)
    last = last_line(loop) if loop is not None else 0
    for call in fn.calls:
        inside = test.lineno <= call.lineno <= last_line(test.body)
        if (inside or call.lineno > last) and queue_of(call, TAKES, fn, facts):
            return True
    return False


def too_few_end_marks(facts: Facts) -> Iterator[Witness]:
    """Report queues that get one end mark, of which several workers each need one."""
    for root in facts.roots:
        if root.kind not in ("thread", "process", "task") or not root.several:
            continue
        starts = [other for other in facts.roots if other.function is root.function]
        once_in = root.once_in.qualname if root.once_in is not None and len(starts) == 1 else ""
        for queue, mark, get in ends_by(root.function, facts):
            if once_in and queue.startswith(f"{once_in}."):
                continue  # one worker for each queue that this function makes
            puts = queue_uses(facts, PUTS, queue)
            if any(put.fn is root.function for put in puts):
                continue  # stages, each with a queue of its own
            marks = [put for put in puts if put.call.args and ast.unparse(put.call.args[0]) == mark]
            if len(marks) == 1 and not in_loop(marks[0].call, marks[0].fn):
                yield Witness(marks[0].call, marks[0].fn, mark=mark, queue=queue, root=root, get=get)


#: Method -> the position at which it expects whether to wait.
FLAGS = {"get": 0, "put": 1, "acquire": 0}
KINDS = {*THREAD_QUEUES} | LOCKS - ASYNC_LOCKS
NAMED = re.compile(r"time_?out|wait|sec(ond)?s?$|delay|interval|patience", re.I)


def seconds_as_flag(facts: Facts) -> Iterator[Witness]:
    """Report numbers of seconds given as the flag of a wait, without a timeout."""
    for use in facts.uses(tuple(FLAGS), KINDS):
        call, method = use.call, short_name(use.call.func)
        argument = call.args[FLAGS[method]] if len(call.args) == FLAGS[method] + 1 else None
        if argument is None or keyword(call, "timeout") is not None or not use.resource.sure:
            continue
        if _is_time(argument, use.fn):
            flag = "blocking" if method == "acquire" else "block"
            yield Witness(call, use.fn, argument=argument, flag=flag, resource=use.of)


def _is_time(argument: ast.expr, fn: Function) -> bool:
    """Whether a value is a number of seconds: by its value where that is known, else by its name."""
    value = _value(argument, fn)
    if isinstance(value, ast.Constant):
        number = value.value
        return isinstance(number, int | float) and not isinstance(number, bool) and number not in (0, 1)
    return value is argument and NAMED.search(short_name(argument)) is not None


def _value(argument: ast.expr, fn: Function) -> ast.expr:
    """What a name or an attribute was set to, or a parameter's default; the expression itself where that is unknown."""
    name = short_name(argument)
    if isinstance(argument, ast.Name):
        for scope in fn.scopes():
            if name in scope.bound:
                return scope.bound[name]
            if name in scope.parameters:
                default = scope.default(name)
                return default if isinstance(default, ast.Constant) and default.value is not None else argument
    if isinstance(argument, ast.Attribute) and fn.cls is not None and short_name(argument.value) == fn.self_name:
        values = fn.cls.values.get(name, ())
        return values[0][0] if len(values) == 1 and isinstance(values[0][0], ast.Constant) else argument
    return argument


def left_early(facts: Facts) -> Iterator[Witness]:
    """Report threads that leave the loop in which they read a bounded queue once it was empty for a while."""
    threads = {id(r.function) for r in facts.roots if r.kind == "thread"}
    for get in queue_uses(facts, ("get",)):
        tried, loop = enclosing(get.call, ast.Try), enclosing(get.call, ast.While)
        if id(get.fn) not in threads or not get.resource.bounded or not has_timeout(get.call, "get"):
            continue
        if not isinstance(loop, ast.While) or not isinstance(loop.test, ast.Constant):
            continue
        handlers = tried.handlers if isinstance(tried, ast.Try) else []
        empty = [h for h in handlers if h.type is not None and short_name(h.type) in ("Empty", "Exception")]
        exits = [h for h in empty if isinstance(h.body[-1], ast.Break | ast.Return)]
        puts = (
            put for put in queue_uses(facts, ("put",), get.of) if put.fn is not get.fn and in_loop(put.call, put.fn)
        )
        put = next((put for put in puts if not has_timeout(put.call, "put")), None)
        if exits and put is not None and not _has_another_end(loop, exits[0]):
            handler = exits[0]
            yield Witness(handler.body[-1], get.fn, queue=get.of, producer=put.fn, put=put.call, handler=handler)


def _has_another_end(loop: ast.While, handler: ast.ExceptHandler) -> bool:
    """Whether the loop has another end: an end mark, a flag."""
    inside = {id(n) for n in ast.walk(handler)}
    return any(isinstance(n, ast.Break | ast.Return) and id(n) not in inside for n in ast.walk(loop))
