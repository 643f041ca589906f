"""Coroutines, tasks and cancellations that nothing takes notice of."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    around,
    dotted,
    enclosing,
    is_within,
    keyword,
    parent,
    short_name,
)
from paceline.concurrency.check.values.sources import parts


def lock_not_awaited(facts: Facts) -> Iterator[Witness]:
    """Report acquires and waits of asyncio locks, and calls of coroutines, that are statements of their own."""
    for fn in facts.module.functions:
        for effect in (e for e in facts.walker.effects(fn) if isinstance(parent(e.node), ast.Expr)):
            resource, callee, node = effect.resource, effect.callee, effect.node
            named = callee is not None and callee.name == short_name(getattr(node, "func", node))
            if named and callee is not None and callee.only_awaited and not effect.perhaps:
                yield Witness(node, fn, "never-run", callee=callee, function=text_of(node)[:-2])
            takes = effect.kind in ("take", "try", "wait") and resource is not None and resource.sure
            if takes and resource is not None and resource.kind in ASYNC_LOCKS:
                yield Witness(node, fn, effect=effect, resource=resource)


STARTS = ("create_task", "ensure_future")


def task_not_kept(facts: Facts) -> Iterator[Witness]:
    """Report calls of create_task and ensure_future that are statements of their own."""
    for fn in facts.module.functions:
        yield from _left_running(fn, facts)
        for call in fn.calls:
            if short_name(call.func) in STARTS and isinstance(parent(call), ast.Expr) and _of_asyncio(call, facts):
                what = text_of(call.args[0] if call.args else call) or "the coroutine"
                yield Witness(call, fn, what=what)


def _left_running(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`async with open() as x: await gather(...)` of tasks that use x, where the program survives that one raises."""
    for wait in fn.awaits:
        call, block = wait.value, enclosing(wait, ast.AsyncWith, ast.With)
        if not isinstance(call, ast.Call) or short_name(call.func) != "gather" or keyword(call, "return_exceptions"):
            continue
        several = len(call.args) > 1 or any(isinstance(a, ast.Starred) for a in call.args)
        opened = [dotted(i.optional_vars) for i in getattr(block, "items", ()) if i.optional_vars is not None]
        parts = [n for a in call.args for n in ast.walk(a)]
        parts += [n for p in parts if isinstance(p, ast.Name) and p.id in fn.bound for n in ast.walk(fn.bound[p.id])]
        name = next((n for n in opened if any(isinstance(p, ast.Name) and p.id == n for p in parts)), "")
        # Where the exception ends the program, nothing uses what was closed.
        if several and name and block is not None and _is_survived(block, fn, facts):
            yield Witness(call, fn, "left-running", name=name, block=block)
            return


def _is_survived(at: ast.AST, fn: Function, facts: Facts, depth: int = 2) -> bool:
    """Whether an exception at a place is caught, here or by a caller."""
    for tried in around(at, ast.Try):
        if tried.handlers and is_within(at, tried.body):
            return any(not isinstance(h.body[-1], ast.Raise) for h in tried.handlers)
    callers = facts.callers.get(id(fn), ()) if depth else ()
    return any(_is_survived(event.effect.node, caller, facts, depth - 1) for caller, event in callers)


def _of_asyncio(call: ast.Call, facts: Facts) -> bool:
    """Whether asyncio or one of its loops starts the task: a task group keeps its tasks itself."""
    name = facts.module.canonical(call.func)
    if name in ("asyncio.create_task", "asyncio.ensure_future"):
        return True
    owner = dotted(call.func.value).lower() if isinstance(call.func, ast.Attribute) else ""
    return bool(call.args) and owner.removesuffix("()").rpartition(".")[2].strip("_").endswith("loop")


CATCHES = ("CancelledError", "BaseException")
#: Calls that a handler may make besides those of a logger.
TELLS = ("print", "print_exc", "format_exc", "sleep", "str", "repr", "type")
LEAVES = (ast.Raise, ast.Return, ast.Break)


def cancel_swallowed(facts: Facts) -> Iterator[Witness]:
    """Report handlers of endless loops that take a cancellation for an error like another one."""
    for fn in facts.module.functions:
        for wait in fn.awaits if fn.asynchronous else ():
            tried = _tried(wait)
            loop = enclosing(tried, ast.While) if tried is not None else None
            if tried is None or not isinstance(loop, ast.While) or not _endless(loop) or _ends(wait, fn):
                continue
            handler = next((h for h in tried.handlers if _catches(h)), None)
            if handler is not None and all(_only_tells(n) for s in handler.body for n in ast.walk(s)):
                yield Witness(handler, fn, wait=wait)
                break


def _tried(wait: ast.Await) -> ast.Try | None:
    """The nearest `try` in whose body an await is; None where another kind of handler or a loop is in between."""
    return next((tried for tried in around(wait, ast.Try) if is_within(wait, tried.body)), None)


def _endless(loop: ast.While) -> bool:
    return isinstance(loop.test, ast.Constant) and bool(loop.test.value)


def _ends(wait: ast.Await, fn: Function) -> bool:
    """Whether the function waits for a task that it has itself cancelled."""
    name = dotted(wait.value)
    return any(short_name(c.func) == "cancel" for c in fn.calls) or (bool(name) and not name.endswith("()"))


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches a cancellation."""
    return handler.type is None or any(short_name(kind) in CATCHES for kind in parts(handler.type))


def _only_tells(node: ast.AST) -> bool:
    """Whether a handler continues after this, and leaves the exception to nothing that may decide otherwise."""
    tells = not isinstance(node, ast.Call) or (
        isinstance(node.func, ast.Attribute | ast.Name)
        and (short_name(node.func) in TELLS or "log" in dotted(node.func).lower())
    )
    return tells and not isinstance(node, LEAVES)
