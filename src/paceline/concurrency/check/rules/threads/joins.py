"""Joins of threads that do not end, or of the thread itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness, blocks_that_make
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    dotted,
    is_constant,
    is_within,
    keyword,
    last_line,
    short_name,
)
from paceline.concurrency.check.threads.stops import Ender, Stop, enders, tells
from paceline.concurrency.check.threads.waits import ASKS_WHO, prevented
from paceline.concurrency.check.values.calls import functions_of


def joined_early(facts: Facts) -> Iterator[Witness]:
    """Report joins of open pools and at exit, and blocks of executors whose tasks are told to end only after them."""
    for pool in facts.uses(("join",), ("Pool",)):
        # `Pool.join` raises where neither was called; that other functions may call them counts as called.
        if not facts.uses(("close", "terminate"), of=pool.of):
            yield Witness(pool.call, pool.fn, "open")
    for fn in facts.module.functions:
        yield from list(_told_after_block(fn, facts))[:1]
    for join in facts.uses(("join",), ("Thread", "Process")):
        register = _only_at_exit(join.fn, facts)
        made = facts.module.objects.made(join.call.func.value, join.fn) if register is not None else []  # type: ignore[attr-defined]
        stop = Stop(join.resource, "", ((join.fn, join.call),))
        for run in (ender.fn for ender in enders(stop, facts) if register is not None):
            told = any(tell.fn is join.fn and tell.line < join.line for _, tell in tells(run, facts))
            if register is not None and told and not any(_is_daemon(*pair) for pair in made):
                yield Witness(register, join.fn, "exit", runs=run, join=join.call)


def _only_at_exit(fn: Function, facts: Facts) -> ast.Call | None:
    """Where a function is registered to run at exit, if nothing else calls it."""
    for call, other in facts.module.calls if not facts.callers.get(id(fn)) else ():
        registers = facts.module.canonical(call.func) == "atexit.register" and call.args
        if registers and facts.module.function_named(call.args[0], other) is fn:
            return call
    return None


def _is_daemon(construction: ast.Call, maker: Function) -> bool:
    """Whether a thread does not keep the interpreter from its exit."""
    daemon = keyword(construction, "daemon")
    later = any(isinstance(t, ast.Attribute) and t.attr == "daemon" for t, _ in maker.assigns)
    later = later or any(short_name(c.func) == "setDaemon" for c in maker.calls)
    return later or not (daemon is None or is_constant(daemon, False))


def _told_after_block(fn: Function, facts: Facts) -> Iterator[Witness]:
    """Tasks of an executor whose block waits for them at its end, though what would end them comes after it."""
    for block, executor in blocks_that_make("Executor", fn, facts):
        for call in (c for c in fn.calls if dotted(c.func) == f"{executor}.submit" and c.args and is_within(c, block)):
            stop = Stop(None, "every task to end", ((fn, call),), until=last_line(block))
            for run in functions_of(call.args[0], fn, facts.module):
                by = prevented(Ender(run), (stop,), facts)
                if by is not None and by.why == "untold later":
                    yield Witness(call, fn, "block", stop=stop, by=by, ender=by.ender)


Steps = tuple[tuple[Function, ast.expr], ...]
STARTS_OF_JOINERS = ("create_task", "ensure_future")
#: Functions that wait for the tasks that they are given.
WAITS = ("gather", "wait", "wait_for", "shield")


def joins_itself(facts: Facts) -> Iterator[Witness]:
    """Report awaits of the task in an attribute, reached from the coroutine that it runs."""
    for cls in facts.module.classes.values():
        for attribute, values in cls.values.items():
            runs = [run for value, fn in values if (run := _run_by(value, fn, facts)) is not None]
            others = [v for v, _ in values if isinstance(v, ast.Call)]
            # An attribute that may hold another task is not known to hold this one.
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
    asks = any(short_name(c.func) in ASKS_WHO for c in fn.calls)
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
