"""Joins of threads that do not end, or of the thread itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.rules.endings import Ending
from paceline.concurrency.check.rules.rule import Witness, blocks_that_make, resource_of
from paceline.concurrency.check.summaries import Facts, Wait
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    dotted,
    is_constant,
    is_within,
    keyword,
    last_line,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.roots import STARTS, in_loop
from paceline.concurrency.check.values.bindings import start_arguments

READS = ("get", "get_nowait")
FORCES = ("terminate", "kill", "cancel_join_thread")


def joined_early(facts: Facts) -> Iterator[Witness]:
    """Report joins before what ends the thread, and joins of threads that may wait for room in a queue."""
    for pool in facts.uses(("join",), ("Pool",)):
        if not facts.uses(("close", "terminate"), of=pool.of):
            yield Witness(pool.call, pool.fn, "open")
    for fn in facts.module.functions:
        yield from list(_signalled_after_block(fn, facts))[:1]
        for join in fn.calls:
            thread = _joined(join, fn, facts)
            if thread is None:
                continue
            register = _only_at_exit(fn, facts)
            signal = thread.late_signal() if not in_loop(join, fn) else None
            if register is not None and not _is_daemon(thread) and thread.is_signalled:
                yield Witness(register, fn, "exit", runs=thread.runs, join=join)
            elif signal is not None and not thread.is_signalled:
                yield _report(thread, join, signal, text_of(join))
            elif (asleep := thread.asleep()) is not None:
                yield _report_asleep(fn, join, thread.runs, *asleep)
            elif (put := _full(thread, facts)) is not None and not _drained(fn, join, put[1], facts):
                yield Witness(join, fn, "full", runs=thread.runs, queue=put[1], put=put[0])


def _only_at_exit(fn: Function, facts: Facts) -> ast.Call | None:
    """Where a function is registered to run at exit, if nothing else calls it."""
    for call, other in facts.module.calls if not facts.callers.get(id(fn)) else ():
        registers = facts.module.canonical(call.func) == "atexit.register" and call.args
        if registers and facts.module.function_named(call.args[0], other) is fn:
            return call
    return None


def _is_daemon(thread: Ending) -> bool:
    """Whether a thread does not keep the interpreter from its exit."""
    daemon, maker = keyword(thread.construction, "daemon"), thread.maker
    later = any(isinstance(t, ast.Attribute) and t.attr == "daemon" for t, _ in maker.assigns)
    later = later or any(short_name(c.func) == "setDaemon" for c in maker.calls)
    return later or not (daemon is None or is_constant(daemon, False))


def _signalled_after_block(fn: Function, facts: Facts) -> Iterator[Witness]:
    """Tasks of an executor whose block waits for them at its end, though what would end them comes after it."""
    for block, executor in blocks_that_make("Executor", fn, facts):
        for call in (c for c in fn.calls if dotted(c.func) == f"{executor}.submit" and c.args and is_within(c, block)):
            runs, end = facts.module.function_named(call.args[0], fn), block.body[-1]
            task = Ending(call, fn, runs, fn, last_line(end), facts) if runs is not None else None
            signal = task.late_signal() if task is not None and not in_loop(end, fn) else None
            if task is None or signal is None or task.is_signalled:
                continue
            if not any(task.signals(c) for inner in fn.nested.values() for c in inner.calls):
                yield _report(task, call, signal, "the end of the block")


def _joined(call: ast.Call, fn: Function, facts: Facts) -> Ending | None:
    """The thread or process that a call joins without a timeout."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr != "join" or call.args or has_timeout(call, "join"):
        return None
    resource = facts.module.resource(func.value, fn)
    if resource is not None and resource.kind not in ("Thread", "Process"):
        return None
    for maker, value in _values(func.value, fn):
        if isinstance(value, ast.Call) and facts.module.constructed_kind(value, maker) in ("Thread", "Process"):
            name = short_name(value.func)
            target = keyword(value, STARTS[name][1], STARTS[name][2]) if name in STARTS else None
            runs = facts.module.function_named(target, maker) if target is not None else None
            if runs is not None:
                return Ending(value, maker, runs, fn, call.lineno, facts)
    return None


def _values(node: ast.expr, fn: Function) -> Iterator[tuple[Function, ast.expr]]:
    """What a name, an attribute of the own object, or the elements of a list in one, were given."""
    if isinstance(node, ast.Name) and node.id in fn.looped:
        over = fn.looped[node.id]
        for other in fn.cls.methods.values() if fn.cls is not None else [fn]:
            receiver = dotted(over).replace(f"{fn.self_name}.", f"{other.self_name}.", 1)
            for call in other.calls:
                if call.args and dotted(call.func) == f"{receiver}.append":
                    yield from ((other, v) for v in [other.bound.get(dotted(call.args[0])), call.args[0]] if v)
    elif isinstance(node, ast.Name) and node.id in fn.bound:
        yield fn, fn.bound[node.id]
    elif isinstance(node, ast.Attribute) and dotted(node.value) == fn.self_name and fn.cls is not None:
        yield from ((maker, value) for value, maker in fn.cls.values.get(node.attr, ()))


def _report_asleep(
    fn: Function, join: ast.Call, runs: Function, wait: ast.Call, what: str, signal: ast.expr
) -> Witness:
    socket = short_name(wait.func) == "accept"
    event = short_name(wait.func) == "wait"
    return Witness(
        join,
        fn,
        "asleep",
        runs=runs,
        wait=wait,
        until="that happens" if event else "a connection comes" if socket else "something comes",
        what=what,
        signal=signal,
        remedy="connect to the socket once more before the join, or give it a timeout"
        if socket
        else "set the event before the join, after the flag"
        if event
        else "wait for the data with a timeout, or for a second pipe as well, by select()"
        if short_name(wait.func) == "read"
        else f"put an end mark into {what.rpartition(' ')[2]} before the join, or get with a timeout",
        subject=what.removesuffix(" to be set").rpartition(" ")[2],
        need="connect" if socket else "set it" * event or "put one",
    )


def _full(thread: Ending, facts: Facts) -> tuple[ast.Call, str] | None:
    """A `put` in a loop of the thread that waits for room, and the queue."""
    runs = thread.runs
    parameters = [p for p in runs.parameters if runs.cls is None or p != runs.self_name]
    arguments = dict(zip(parameters, start_arguments(thread.construction, thread.maker), strict=False))
    if any(short_name(c.func) == "cancel_join_thread" for c in runs.calls):
        return None
    for call in runs.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "put" and in_loop(call, runs):
            passed = arguments.get(dotted(call.func.value))
            queue = facts.module.resource(passed or call.func.value, thread.maker if passed else runs)
            if queue is None or queue.one_of_several or has_timeout(call, "put"):
                continue
            readers = [use.fn for use in facts.uses(READS, of=queue.id)]
            fills = queue.kind == "ProcessQueue" or (queue.bounded and queue.kind == "Queue")
            if fills and readers and not any(map(facts.runs_beside, readers)):
                return call, queue.id
    return None


def _drained(fn: Function, join: ast.Call, queue: str, facts: Facts) -> bool:
    """Whether the function reads the queue until it is empty before it joins, or ends the child by force."""
    first = _cut_off(join)  # what comes before the cleanup may have been left early
    earlier = [c for c in fn.calls if first <= c.lineno <= join.lineno]
    if any(short_name(c.func) in FORCES for c in earlier):
        return True
    reads = {id(use.call) for use in facts.uses(READS, of=queue)}
    if fn.cls is None and any(id(call) in reads for call in earlier):
        return True
    helpers = [(h, c) for e in earlier if (h := facts.module.callee(e, fn)) is not None for c in h.calls]
    return any(id(c) in reads and in_loop(c, f) for f, c in [*((fn, c) for c in earlier), *helpers])


def _cut_off(join: ast.Call) -> int:
    """The first line of the `finally` in which a thread is joined; 0 where it is not in one."""
    at: ast.AST | None = join
    while at is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef):
        around = parent(at)
        if isinstance(around, ast.Try) and at in around.finalbody:
            return around.finalbody[0].lineno
        at = around
    return 0


def _report(thread: Ending, at: ast.Call, signal: ast.AST, waiter: str) -> Witness:
    line = getattr(signal, "lineno", at.lineno)
    what = text_of(signal) if isinstance(signal, ast.Call) else f"{dotted(signal)} = ..."
    return Witness(at, thread.fn, waiter=waiter, runs=thread.runs, line=line, what=what)


Steps = tuple[tuple[Function, ast.expr], ...]
ASKS = {"current_thread", "currentThread", "get_ident", "ident", "current_task"}
STARTS_OF_JOINERS = ("create_task", "ensure_future")
#: Functions that wait for the tasks that they are given.
WAITS = ("gather", "wait", "wait_for", "shield")


def joins_itself(facts: Facts) -> Iterator[Witness]:
    """Report joins of the only thread or task that runs a function, and of executors, reached from that function."""
    yield from _tasks_joining_themselves(facts)
    for fn in facts.module.functions:
        for call in fn.calls:
            pool = resource_of(call, ("submit",), fn, facts)
            task = facts.module.function_named(call.args[0], fn) if pool is not None and call.args else None
            for wait in facts.waits(task).values() if task is not None and pool is not None else ():
                ended = wait.effect.resource
                where, node = wait.steps[-1]
                if ended is not None and ended.kind == "Executor" and ended.id == pool.id and not _asks(wait):  # type: ignore[union-attr]
                    yield Witness(node, where, target=task, wait=wait)
    for root in facts.roots:
        if root.kind != "thread" or root.several:
            continue
        for wait in facts.waits(root.function).values():
            fn, node = wait.steps[-1]
            resource = wait.effect.resource
            if (
                resource is None
                or resource.kind != "Thread"
                or _asks(wait)
                or short_name(getattr(node, "func", node)) != "join"
            ):
                continue
            constructor = next((c for c, _ in facts.module.calls if c.lineno == resource.line), None)
            target = keyword(constructor, "target", 1) if constructor is not None else None
            makers = [
                f for f in facts.module.functions if constructor is not None and any(c is constructor for c in f.calls)
            ]
            if target is not None and any(facts.module.function_named(target, f) is root.function for f in makers):
                yield Witness(node, fn, target=root.function, wait=wait)


def _asks(wait: Wait) -> bool:
    """Whether something on the way asks which thread it runs in."""
    named = any(n.attr in ASKS for f, _ in wait.steps for n in f.attributes)
    return named or any(short_name(c.func) in ASKS for f, _ in wait.steps for c in f.calls)


def _tasks_joining_themselves(facts: Facts) -> Iterator[Witness]:
    """Awaits of the task in an attribute, reached from the coroutine that it runs."""
    for cls in facts.module.classes.values():
        for attribute, values in cls.values.items():
            runs = [run for value, fn in values if (run := _run_by(value, fn, facts)) is not None]
            others = [v for v, _ in values if isinstance(v, ast.Call)]
            if len({id(fn) for fn in runs}) != 1 or len(others) != len(runs):
                continue
            for steps in _awaiting(runs[0], attribute, (), facts, set()):
                fn, node = steps[-1]
                yield Witness(node, fn, "task", attribute=attribute, target=runs[0], steps=steps)
                break


def _run_by(value: ast.expr, fn: Function, facts: Facts) -> Function | None:
    """The coroutine that a task runs: `f` of `create_task(f())`."""
    started = isinstance(value, ast.Call) and short_name(value.func) in STARTS_OF_JOINERS and bool(value.args)
    inner = value.args[0] if started else None  # type: ignore[attr-defined]
    return facts.module.callee(inner, fn) if isinstance(inner, ast.Call) else None


def _awaiting(fn: Function, attribute: str, way: Steps, facts: Facts, visited: set[int]) -> Iterator[Steps]:
    """The ways from a function to an await of an attribute of its object, other than after it was taken out."""
    target = f"{fn.self_name}.{attribute}"
    asks = any(short_name(c.func) in ASKS for c in fn.calls)
    replaced = [t.lineno for t, _ in fn.assigns for part in _parts(t) if dotted(part) == target]
    if id(fn) in visited or asks or not fn.self_name:
        return
    visited.add(id(fn))
    for wait in fn.awaits:
        arguments = wait.value.args if isinstance(wait.value, ast.Call) and short_name(wait.value.func) in WAITS else ()
        named = [dotted(n) for n in (wait.value, *(part for a in arguments for part in _parts(a)))]
        aliases = {name for t, v in fn.assigns for name in (dotted(t),) if target in [dotted(p) for p in _parts(v)]}
        is_alias = any(name in aliases for name in named)
        if is_alias or (target in named and all(line >= wait.lineno for line in replaced)):
            yield (*way, (fn, wait.value))
    for effect in facts.runs(fn):
        of_object = dotted(getattr(effect.node, "func", effect.node)).startswith(f"{fn.self_name}.")
        callee = effect.callee
        if callee is not None and callee.cls is not None and of_object and all(n > effect.line for n in replaced):
            yield from _awaiting(callee, attribute, (*way, (fn, effect.node)), facts, visited)


def _parts(node: ast.expr) -> list[ast.expr]:
    """The elements of a tuple or list, or the expression alone."""
    return node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
