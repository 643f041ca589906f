"""Tasks, groups of them and streams of objects that do not end, or that nothing takes notice of."""

from __future__ import annotations

import ast
import re
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
    following,
    is_within,
    keyword,
    parent,
    short_name,
    statement_of,
)
from paceline.concurrency.check.threads.shared_state import ENDINGS
from paceline.concurrency.check.values.sources import parts

GROUPS = ("TaskGroup", "open_nursery", "create_task_group")
STARTS_IN_GROUPS = ("create_task", "ensure_future", "start_soon")
#: What ends other tasks, or the program.
ENDS = {"cancel", "exit", "_exit", "stop", "aclose", "kill", "raise_signal"}
#: Functions of libraries that may run as long as the program does.
LASTS = re.compile(r"forever|serve|listen|consume|wait|join|run|start|recv|receive|poll|watch|closed")
GROUP_NEVER_ENDS_DEPTH = 3


def group_never_ends(facts: Facts) -> Iterator[Witness]:
    """Report groups with a task that never ends beside one that does, where something comes after the group."""
    for fn in facts.module.functions:
        yield from _awaited_in_vain(fn, facts)
        for block in fn.withs:
            group = next((i for i in block.items if _opens_group(i.context_expr)), None)
            if isinstance(block, ast.AsyncWith) and group is not None and group.optional_vars is not None:
                starts = _started_in(block, dotted(group.optional_vars), fn)
                yield from _of_group(block, starts, fn, facts)
        for wait in fn.awaits:
            call = wait.value
            if isinstance(call, ast.Call) and short_name(call.func) == "gather" and not keyword(call, "timeout"):
                inner: list[tuple[ast.Call, ast.expr]] = [(a, a) for a in call.args if isinstance(a, ast.Call)]
                if len(inner) == len(call.args) and isinstance(parent(wait), ast.Expr | ast.Assign | ast.Return):
                    yield from _of_group(wait, inner, fn, facts)


def _awaited_in_vain(fn: Function, facts: Facts) -> Iterator[Witness]:
    """A clean-up that awaits a task without an end, which nothing cancels."""
    if not fn.asynchronous or not any(word in fn.name.lower() for word in ENDINGS):
        return
    for wait in fn.awaits:
        text = ast.unparse(wait.value)
        if not isinstance(wait.value, ast.Name | ast.Attribute | ast.Subscript):
            continue
        values = [(v, f) for f in facts.module.functions for t, v in f.assigns if ast.unparse(t) == text]
        starts = [(v, f) for v, f in values if isinstance(v, ast.Call) and short_name(v.func) in STARTS_IN_GROUPS]
        run = [each for v, f in starts if v.args and (each := _runs(v.args[0], f, facts)) is not None]
        ends = ((c, f) for c, f in facts.module.calls if short_name(c.func) in ENDS)
        ended = any(f is fn or ast.unparse(c.func).startswith(text) for c, f in ends)
        if run and not ended and all(_never_ends(each, facts) for each in run):
            yield Witness(wait, fn, "awaited", run=run[0])
            return


def _opens_group(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and short_name(node.func) in GROUPS


def _started_in(block: ast.AsyncWith, group: str, fn: Function) -> list[tuple[ast.Call, ast.expr]]:
    """The calls that start a task in a group, each with what it runs; none where the group is handed to others."""
    used = [n for n in fn.names if n.id == group and isinstance(n.ctx, ast.Load)]
    starts = []
    for name in used:
        method = parent(name)
        call = parent(method) if isinstance(method, ast.Attribute) and method.attr in STARTS_IN_GROUPS else None
        if not isinstance(call, ast.Call) or call.func is not method or not call.args:
            return []
        starts.append((call, call.args[0]))
    return starts


def _of_group(
    at: ast.AsyncWith | ast.Await, starts: list[tuple[ast.Call, ast.expr]], fn: Function, facts: Facts
) -> Iterator[Witness]:
    run = [(call, _runs(given, fn, facts)) for call, given in starts]
    callees = [(call, each) for call, each in run if each is not None]
    lasting = [(call, each) for call, each in callees if _never_ends(each, facts)]
    ending = [(call, each) for call, each in callees if _surely_ends(each, facts)]
    works = isinstance(at, ast.AsyncWith) and _works(at, fn)
    # All tasks have to be known, for any other one may end the group by raising; and if nothing follows the group, it
    # is meant to last as long as the program.
    if not lasting or not (ending or works) or len(callees) < len(run) or not _goes_on(at, fn):
        return
    # A task that cancels others, or the group, ends what does not end by itself.
    if any(short_name(c.func) in ENDS for each in (fn, *(e for _, e in callees)) for c in each.calls):
        return
    what = "the group" if isinstance(at, ast.AsyncWith) else text_of(at.value)
    (start, lasts), ends = lasting[0], ending[0][1] if ending else fn
    yield Witness(start, fn, lasting=lasts, what=what, ending=ends, group=at)


def _works(block: ast.AsyncWith, fn: Function) -> bool:
    """Whether the body of a group does work of its own that comes to an end: it awaits, in no endless loop."""
    inside = [a for a in fn.awaits if is_within(a, block.body)]
    named = (short_name(a.value.func).lower() if isinstance(a.value, ast.Call) else "wait" for a in inside)
    loops = (n for s in block.body for n in ast.walk(s) if isinstance(n, ast.While | ast.AsyncFor))
    return bool(inside) and not any(LASTS.search(name) for name in named) and next(loops, None) is None


def _runs(value: ast.expr, fn: Function, facts: Facts) -> Function | None:
    """The coroutine of the file that a task runs."""
    callee = facts.module.callee(value, fn) if isinstance(value, ast.Call) else facts.module.function_named(value, fn)
    return callee if callee is not None and callee.asynchronous and not callee.generator else None


def _never_ends(fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether a coroutine is not left but by an exception that it does not raise itself."""
    if fn.graph is None or depth > GROUP_NEVER_ENDS_DEPTH or any(isinstance(n, ast.Raise) for n in ast.walk(fn.node)):
        return False
    todo, visited = [fn.graph.entry], set[int]()
    while todo:
        node = todo.pop()
        if id(node) not in visited:
            visited.add(id(node))
            todo += node.following()
    if id(fn.graph.end) not in visited:
        return True
    last = fn.body[-1]
    call = last.value.value if isinstance(last, ast.Expr) and isinstance(last.value, ast.Await) else None
    inner = facts.module.callee(call, fn) if isinstance(call, ast.Call) else None
    return inner is not None and inner is not fn and inner.asynchronous and _never_ends(inner, facts, depth + 1)


def _surely_ends(fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether a coroutine comes to an end: it has no loop but over elements, and awaits nothing that may last."""
    raises = any(isinstance(n, ast.Raise) for n in ast.walk(fn.node))
    if depth > GROUP_NEVER_ENDS_DEPTH or raises or any(isinstance(loop, ast.While | ast.AsyncFor) for loop in fn.loops):
        return False
    for wait in fn.awaits:
        call = wait.value
        callee = facts.module.callee(call, fn) if isinstance(call, ast.Call) else None
        if callee is not None and not _surely_ends(callee, facts, depth + 1):
            return False
        if callee is None and (not isinstance(call, ast.Call) or LASTS.search(short_name(call.func).lower())):
            return False
    return True


def _goes_on(at: ast.AST, fn: Function) -> bool:
    """Whether the function has something to do after the group, or returns what it waited for."""
    statement: ast.AST | None = statement_of(at)
    if isinstance(statement, ast.Return | ast.Assign):
        return True
    while statement is not None and statement is not fn.node:
        if following(statement):
            return True
        statement = parent(statement)
    return False


MAKES = ("create_memory_object_stream", "open_memory_channel")
KEEPS_OPEN = ("send", "send_nowait", "statistics", "clone")
#: Calls that start a coroutine with the arguments that follow it, and its position.
STARTS_WITH_ARGUMENTS = {"start_soon": 0, "start": 0}
LEFT_OPEN_DEPTH = 4


def left_open(facts: Facts) -> Iterator[Witness]:
    """Report senders that nothing closes, of streams that a loop receives from."""
    for fn in facts.module.functions:
        for target, value in fn.assigns:
            made = value.value if isinstance(value, ast.Subscript) else value
            maker = made.func if isinstance(made, ast.Call) else value
            maker = maker.value if isinstance(maker, ast.Subscript) else maker  # `create_memory_object_stream[int](1)`
            pair = [each.id for each in parts(target) if isinstance(each, ast.Name)]
            if short_name(maker) not in MAKES or len(pair) != 2:
                continue
            sender, receiver = pair
            loop = _received(receiver, fn, facts, 0)
            if loop is not None and (leak := _left_open(sender, fn, facts, 0)) is not None:
                yield Witness(leak, fn, sender=sender, loop=loop)


def _uses(name: str, fn: Function) -> list[ast.Name]:
    """The uses of a name in a function and in those inside it."""
    return [n for n in fn.names if n.id == name and isinstance(n.ctx, ast.Load)]


def _received(name: str, fn: Function, facts: Facts, depth: int) -> tuple[Function, ast.AsyncFor] | None:
    """The loop that takes everything out of a receiver, in a function or in one that gets it."""
    for use in _uses(name, fn):
        up = parent(use)
        if isinstance(up, ast.AsyncFor) and up.iter is use:
            return fn, up
        given = _given(use, fn, facts) if depth < LEFT_OPEN_DEPTH else None
        loop = _received(given[1], given[0], facts, depth + 1) if given is not None else None
        if loop is not None:
            return loop
    return None


def _given(use: ast.expr, fn: Function, facts: Facts) -> tuple[Function, str] | None:
    """The function of this file, and its parameter, that gets an argument by a call, or by the start of a task."""
    call = parent(use)
    if not isinstance(call, ast.Call) or use not in call.args:
        return None
    name, place = short_name(call.func), call.args.index(use)
    callee = facts.module.callee(call, fn)
    if callee is None and name in STARTS_WITH_ARGUMENTS and call.args:
        callee, place = facts.module.function_named(call.args[0], fn), place - 1
    if callee is None or place < 0:
        return None
    parameters = list(callee.parameters)[1 if callee.cls is not None and callee.self_name else 0 :]
    return (callee, parameters[place]) if place < len(parameters) else None


def _left_open(name: str, fn: Function, facts: Facts, depth: int) -> ast.expr | None:
    """A use of a sender that nothing closes; None where something does, or where that is not known."""
    uses = _uses(name, fn)
    entered = any(dotted(i.context_expr).partition(".")[0] == name for w in fn.withs for i in w.items)
    for use in uses if not entered and depth <= LEFT_OPEN_DEPTH else ():
        up, given = parent(use), _given(use, fn, facts)
        if isinstance(up, ast.Attribute):
            kept_open = up.attr in KEEPS_OPEN and isinstance(parent(up), ast.Call)
        else:
            kept_open = given is not None and _left_open(given[1], given[0], facts, depth + 1) is not None
        if not kept_open:
            return None
    return uses[0] if uses and not entered and depth <= LEFT_OPEN_DEPTH else None


# Coroutines, tasks and cancellations that nothing takes notice of.


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
