"""A thread or task that waits for its own end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts, Wait
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, keyword, short_name

Steps = tuple[tuple[Function, ast.expr], ...]

ASKS = {"current_thread", "currentThread", "get_ident", "ident", "current_task"}
STARTS = ("create_task", "ensure_future")
#: Functions that wait for the tasks that they are given.
WAITS = ("gather", "wait", "wait_for", "shield")


def find(facts: Facts) -> Iterator[Witness]:
    """Report joins of the only thread or task that runs a function, and of executors, reached from that function."""
    yield from _tasks(facts)
    for fn in facts.module.functions:
        for call in fn.calls:
            pool = resource_of(call, ("submit",), fn, facts)
            task = facts.module.function_named(call.args[0], fn) if pool is not None and call.args else None
            for wait in facts.waits(task).values() if task is not None and pool is not None else ():
                ended = wait.effect.resource
                where, node = wait.steps[-1]
                if ended is not None and ended.kind == "Executor" and ended.id == pool.id and not _asks(wait):  # type: ignore[union-attr]
                    yield Witness(node, where, target=task, wait=wait)  # type: ignore[arg-type]
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
            constructor = next((c for f in facts.module.functions for c in f.calls if c.lineno == resource.line), None)
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


def _tasks(facts: Facts) -> Iterator[Witness]:
    """Awaits of the task in an attribute, reached from the coroutine that it runs."""
    for cls in facts.module.classes.values():
        for attribute, values in cls.values.items():
            runs = [run for value, fn in values if (run := _run_by(value, fn, facts)) is not None]
            others = [v for v, _ in values if isinstance(v, ast.Call)]
            if len({id(fn) for fn in runs}) != 1 or len(others) != len(runs):
                continue
            for steps in _awaiting(runs[0], attribute, (), facts, set()):
                yield _report_task(runs[0], attribute, steps)
                break


def _run_by(value: ast.expr, fn: Function, facts: Facts) -> Function | None:
    """The coroutine that a task runs: `f` of `create_task(f())`."""
    started = isinstance(value, ast.Call) and short_name(value.func) in STARTS and bool(value.args)
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


def _report_task(target: Function, attribute: str, steps: Steps) -> Witness:
    fn, node = steps[-1]
    return Witness(node, fn, "task", attribute=attribute, target=target, steps=steps)
