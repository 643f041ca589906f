"""Coroutines, tasks and cancellations that nothing takes notice of."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import enclosing, parent


def lock_not_awaited(facts: Facts) -> Iterator[Witness]:
    """Report acquires and waits of asyncio locks, and calls of coroutines, that are statements of their own."""
    for fn in facts.module.functions:
        for effect in facts.walker.effects(fn):
            resource, callee = effect.resource, effect.callee
            alone = isinstance(parent(effect.node), ast.Expr) and callee is not None and not effect.perhaps
            named = callee is not None and callee.name == short_name(_called(effect.node))
            if alone and named and callee is not None and callee.only_awaited:
                yield Witness(effect.node, fn, "never-run", callee=callee, function=text_of(effect.node)[:-2])
            if effect.kind not in ("take", "try", "wait") or resource is None or not resource.sure:
                continue
            if resource.kind not in ASYNC_LOCKS or not isinstance(parent(effect.node), ast.Expr):
                continue
            yield Witness(effect.node, fn, effect=effect, resource=resource)


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


STARTS = ("create_task", "ensure_future")


def task_not_kept(facts: Facts) -> Iterator[Witness]:
    """Report calls of create_task and ensure_future that are statements of their own."""
    for fn in facts.module.functions:
        for call in fn.calls:
            if short_name(call.func) in STARTS and isinstance(parent(call), ast.Expr) and _of_asyncio(call, facts):
                yield _report(call, fn)


def _of_asyncio(call: ast.Call, facts: Facts) -> bool:
    """Whether asyncio or one of its loops starts the task: a task group keeps its tasks itself."""
    name = facts.module.canonical(call.func)
    if name in ("asyncio.create_task", "asyncio.ensure_future"):
        return True
    owner = dotted(call.func.value).lower() if isinstance(call.func, ast.Attribute) else ""
    return bool(call.args) and owner.removesuffix("()").rpartition(".")[2].strip("_").endswith("loop")


def _report(call: ast.Call, fn: Function) -> Witness:
    what = text_of(call.args[0] if call.args else call) or "the coroutine"
    return Witness(call, fn, what=what)


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
    at: ast.AST = wait
    around = parent(wait)
    while around is not None and not isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        if isinstance(around, ast.Try) and at in around.body:
            return around
        at, around = around, parent(around)
    return None


def _endless(loop: ast.While) -> bool:
    return isinstance(loop.test, ast.Constant) and bool(loop.test.value)


def _ends(wait: ast.Await, fn: Function) -> bool:
    """Whether the function waits for a task that it has itself cancelled."""
    name = dotted(wait.value)
    return any(short_name(c.func) == "cancel" for c in fn.calls) or (bool(name) and not name.endswith("()"))


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches a cancellation."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or short_name(kind) in CATCHES for kind in kinds)


def _only_tells(node: ast.AST) -> bool:
    """Whether a handler continues after this, and leaves the exception to nothing that may decide otherwise."""
    tells = not isinstance(node, ast.Call) or (
        isinstance(node.func, ast.Attribute | ast.Name)
        and (short_name(node.func) in TELLS or "log" in dotted(node.func).lower())
    )
    return tells and not isinstance(node, LEAVES)
