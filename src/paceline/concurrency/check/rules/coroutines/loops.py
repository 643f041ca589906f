"""What stops an event loop: calls that block, locks of threads, waits for the loop itself, loops without an await."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import Effect, text_of
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    arguments_of,
    dotted,
    enclosing,
    is_constant,
    keyword,
    parent,
    receiver_of,
    short_name,
)

KINDS = libraries.words("kinds that block an event loop")


def blocking_in_async(facts: Facts) -> Iterator[Witness]:
    """Report blocking calls in coroutines and callbacks of the loop, and endless waits for resources of threads."""
    for fn in facts.module.functions:
        if not facts.on_loop(fn):
            continue
        yield from _blocking(fn, facts)
        for effect in (e for e in facts.walker.effects(fn) if e.kind == "wait"):
            resource, node = effect.resource, effect.node
            if resource is None or not resource.sure or resource.kind not in KINDS:
                continue
            lasts = not effect.timeout or _lasts(node)
            # What is awaited is a coroutine of the same name, as `Event.wait` of asyncio.
            if not lasts or isinstance(parent(node), ast.Await) or _is_done(node, fn.calls):
                continue
            if effect.timeout:
                yield Witness(node, fn, "limited", place=place(fn), effect=effect, resource=resource)
            else:
                yield Witness(node, fn, place=place(fn), effect=effect, resource=resource)


def _lasts(wait: ast.expr) -> bool:
    """Whether a wait with a timeout may take that long: it waits at all, and for more than an instant."""
    if not isinstance(wait, ast.Call) or any(is_constant(a, False) for a in arguments_of(wait)):
        return False
    timeout = keyword(wait, "timeout", 1 if short_name(wait.func) in ("get", "put") else 0)
    number = timeout.value if isinstance(timeout, ast.Constant) else None
    return timeout is not None and (not isinstance(number, int | float) or number > INSTANT)


INSTANT = 0.01  # seconds


def place(fn: Function) -> str:
    """What the loop runs, in words."""
    return "a coroutine" if fn.asynchronous else "a callback of the loop"


def _blocking(fn: Function, facts: Facts) -> Iterator[Witness]:
    """Calls of libraries that block, in a coroutine or in the functions that it calls."""
    reported: set[str] = set()
    for effect in facts.walker.effects(fn):
        if effect.kind != "call" or isinstance(parent(effect.node), ast.Await):
            continue
        for what, call in facts.blocks_through(effect, fn).items():
            if what in reported:
                continue
            reported.add(what)
            sure, by = (0.8, "") if len(call.steps) == 1 else (0.65, f", which calls {what},")
            # A console that waits for its user mostly has nothing else to do.
            sure = 0.45 if call.waits == "waits for the user" else sure
            yield Witness(
                effect.node,
                fn,
                "blocking",
                confidence=sure,
                by=by,
                place=place(fn),
                call=call,
                what=what,
                effect=effect,
                function=text_of(effect.node)[:-2],
            )


def _is_done(node: ast.expr, calls: list[ast.Call]) -> bool:
    """Whether the function asks `done()` of the same future, so that the result is there."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name = ast.unparse(node.func.value)
    return any(
        isinstance(c.func, ast.Attribute) and c.func.attr == "done" and ast.unparse(c.func.value) == name for c in calls
    )


def await_under_lock(facts: Facts) -> Iterator[Witness]:
    """Report awaits in coroutines while a lock that is not asyncio's is held."""
    for fn in facts.module.functions:
        if not fn.asynchronous:
            continue
        reported: set[str] = set()
        yield from _implicit(fn, facts, reported)
        for effect, locks_held in facts.events(fn):
            at = parent(effect.node)
            if not isinstance(at, ast.Await) or effect.kind == "take":
                continue
            for lock, line, *_ in locks_held:
                of_threads = lock.kind not in ASYNC_LOCKS and (lock.sure or not _async_with(line, fn))
                if of_threads and lock.id not in reported:
                    reported.add(lock.id)
                    yield Witness(at, fn, confidence=0.9 if lock.sure else 0.65, lock=lock.id, line=line)


def _implicit(fn: Function, facts: Facts, reported: set[str]) -> Iterator[Witness]:
    """The awaits of `async for` and `async with`, and the yields of an asynchronous generator."""
    takes = {m.resource.id: m for m, _ in facts.events(fn) if m.kind == "take" and m.resource is not None}
    inner: list[tuple[ast.stmt | ast.expr, ast.expr]] = [(n, n.iter) for n in fn.loops if isinstance(n, ast.AsyncFor)]
    inner += [(n, n.items[0].context_expr) for n in fn.withs if isinstance(n, ast.AsyncWith)]
    inner += [(y, y) for y in fn.yields]  # an asynchronous generator waits there for its consumer
    for node, at in inner if takes else ():
        for name in sorted(facts.held_at(node, fn) & set(takes) - reported):
            lock, line = takes[name].resource, takes[name].line
            if lock is not None and lock.kind not in ASYNC_LOCKS and lock.sure and line < node.lineno:
                reported.add(name)
                yield Witness(at, fn, confidence=0.9, lock=name, line=line)


def _async_with(line: int, fn: Function) -> bool:
    """Whether the lock was taken by `async with` or `await`: a lock of unknown origin is then an asyncio lock."""
    if any(isinstance(w, ast.AsyncWith) and i.context_expr.lineno == line for w in fn.withs for i in w.items):
        return True
    return any(a.lineno == line for a in fn.awaits)


DEPTH = 3


def bridge_on_its_loop(facts: Facts) -> Iterator[Witness]:
    """Report calls that wait for the loop and are reached from a coroutine, or from a callback of the loop."""
    for start in filter(facts.on_loop, facts.module.functions):
        waits = partial(_waits_for_loop, start=start, facts=facts)
        for steps in facts.ways_to(start, waits, lambda effect: not _is_awaited(effect), DEPTH):
            by = "" if len(steps) == 1 else f" by {text_of(steps[0][1])}"
            sure, runs = 0.75 if len(steps) == 1 else 0.65, place(start).replace("a ", "the ", 1)
            call = steps[-1][1]
            yield Witness(steps[0][1], start, "bridges", confidence=sure, call=call, by=by, place=runs, steps=steps)


def _is_awaited(effect: Effect) -> bool:
    """Whether what runs is a coroutine, perhaps by the await around the call alone."""
    return isinstance(parent(effect.node), ast.Await) or (effect.callee is not None and effect.callee.asynchronous)


def _waits_for_loop(call: ast.Call, fn: Function, start: Function, facts: Facts) -> bool:
    """Whether a call, reached from a coroutine, waits until its loop has run something."""
    name = short_name(call.func)
    if name == "run_until_complete":
        # A loop that the function makes is another one than that which runs it.
        own_loop = any(short_name(c.func) == "new_event_loop" for c in fn.calls)
        return not own_loop and not isinstance(parent(call), ast.Await)
    if facts.module.canonical(call.func) == "asyncio.run":
        return True
    value = receiver_of(call) if name == "result" else None
    if isinstance(value, ast.Name):
        value = fn.bound.get(value.id, value)
    if not isinstance(value, ast.Call) or short_name(value.func) != "run_coroutine_threadsafe" or len(value.args) < 2:
        return False
    coroutine, loop = value.args[:2]
    if _of_a_coroutine(loop, fn, facts, 0):
        return True
    if isinstance(loop, ast.Attribute) and fn.cls is not None and fn.self_name and dotted(loop.value) == fn.self_name:
        if isinstance(coroutine, ast.Name) and coroutine.id in fn.parameters:  # whose loop it is, its callers say
            return any(each is start for each in _passed(coroutine.id, fn, facts))
        # its own coroutine, on its own loop
        return isinstance(coroutine, ast.Call) and facts.module.function_named(coroutine.func, fn) is not None
    binding = fn.bound.get(loop.id) if isinstance(loop, ast.Name) else None
    gets = isinstance(binding, ast.Call) and short_name(binding.func) in ("get_event_loop", "get_running_loop")
    return gets or isinstance(loop, ast.Call)


def _passed(name: str, fn: Function, facts: Facts) -> Iterator[Function]:
    """The coroutines of which callers pass a call for a parameter."""
    for argument in facts.module.objects.arguments(fn, name):
        callee = facts.module.callee(argument.value, argument.caller) if isinstance(argument.value, ast.Call) else None
        if callee is not None and callee.asynchronous:
            yield callee


def _of_a_coroutine(loop: ast.expr, fn: Function, facts: Facts, depth: int) -> bool:
    """Whether an expression is the loop that a coroutine runs on, which it passes on: `Client(get_running_loop())`."""
    if isinstance(loop, ast.Call):
        return short_name(loop.func) in ("get_running_loop", "get_event_loop") and fn.asynchronous
    given = facts.module.given(loop, fn) if depth < DEPTH else []
    return any(_of_a_coroutine(value, scope, facts, depth + 1) for value, scope in given)


#: Calls that change nothing that a loop may wait for.
IDLE = {"print", "sleep", "debug", "info", "warning", "log", "len", "str", "repr", "format", "monotonic"}
#: Questions whose answer another task changes.
ASKS = {"done", "is_set", "locked", "empty", "full", "cancelled", "qsize"}


def spins(facts: Facts) -> Iterator[Witness]:
    """Report loops of coroutines that ask for what only another task can change, and do nothing else."""
    for fn in facts.module.functions:
        for loop in fn.loops if fn.asynchronous else ():
            condition = _asks(loop.test, fn, facts) if isinstance(loop, ast.While) else ""
            if condition and isinstance(loop, ast.While) and not _does_something(loop, fn, facts):
                yield Witness(loop, fn, condition=condition)


def _asks(test: ast.expr, fn: Function, facts: Facts) -> str:
    """The attribute, global or state of an object that a test asks for; empty where it asks for anything else."""
    called = [n for n in ast.walk(test) if isinstance(n, ast.Call)]
    # Any other call may itself change what it answers.
    if any(not isinstance(c.func, ast.Attribute) or c.func.attr not in ASKS or c.args for c in called):
        return ""
    if any(isinstance(n, ast.Await | ast.NamedExpr) for n in ast.walk(test)):
        return ""
    if called:
        return ast.unparse(called[0])
    inner = test.operand if isinstance(test, ast.UnaryOp) else test.left if isinstance(test, ast.Compare) else test
    if isinstance(inner, ast.Name):
        shared = inner.id in fn.globals | fn.nonlocals or _of_file(inner, fn, facts)
        return inner.id if shared else ""
    on_self = isinstance(inner, ast.Attribute) and bool(fn.self_name) and dotted(inner.value) == fn.self_name
    values = fn.cls.values.get(short_name(inner), ()) if on_self and fn.cls is not None else ()
    return dotted(inner) if any(scope is not fn and scope.name != "__init__" for _, scope in values) else ""


def _of_file(name: ast.Name, fn: Function, facts: Facts) -> bool:
    """Whether a name is a global that other functions change."""
    local_names = {n.id for scope in fn.scopes() for n in scope.stores if scope is not facts.module.top}
    changed = any(name.id in f.globals for f in facts.module.functions if f is not fn)
    return changed and name.id not in local_names and all(name.id not in s.parameters for s in fn.scopes())


def _does_something(loop: ast.While, fn: Function, facts: Facts) -> bool:
    """Whether a turn of the loop awaits, leaves or changes something itself, or calls what may do that."""
    for node in (n for statement in loop.body for n in ast.walk(statement)):
        if isinstance(node, ast.AsyncFor | ast.AsyncWith | ast.Yield | ast.Break | ast.Return | ast.Raise):
            return True
        if isinstance(node, ast.Await):
            # An await of a coroutine that never gives up its turn, as of one that returns at once, is none.
            if facts.lets_others_run(node, fn):
                return True
        elif isinstance(node, ast.Call):
            around = enclosing(node, ast.Await)
            awaited = isinstance(around, ast.Await) and around.value is node
            if not awaited and short_name(node.func) not in IDLE:
                return True
        elif isinstance(node, ast.Attribute | ast.Name) and not isinstance(node.ctx, ast.Load):
            return True
    return False
