"""A request taken from a queue whose sender waits for an answer that one path does not give."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from paceline.concurrency.check.flow.duties import Duty, Skipped, one_of
from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.libraries.catalogue import EVENTS
from paceline.concurrency.check.rules.futures import makes_future
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import awaited, parent, user_of
from paceline.concurrency.check.threads.roots import in_loop

TAKES = ("get", "get_nowait", "popleft", "pop", "recv")
ANSWERS = ("set", "set_result")
FAILS = ("set_exception", "cancel", "set_error", "fail", "abort")
ASKS = ("done", "cancelled", "is_set")
HANDS_ON = ("put", "put_nowait", "append", "appendleft", "submit", "add", "send")


def find(facts: Facts) -> Iterator[Witness]:
    """Report worker loops in which a path does not answer the request that it took."""
    waits = _waits(facts)
    for fn in facts.module.functions if waits else ():
        for take, names in _taken(fn):
            answers = [c for c in fn.calls if c.lineno >= take.lineno and _answers(c, names)]
            kind = waits.get(short_name(answers[0].func)) if answers else None
            if kind is None or not _made_here(facts, short_name(answers[0].func)):
                continue
            duty = Duty(fn, partial(_meets, names=names))
            starts = duty.steps(one_of([take]))
            ways = sorted(duty.skipped_after(starts), key=lambda s: (s.raised, s.node.line))
            for skipped in (ways or list(duty.failed_in(starts, answers)))[:1]:
                yield _report(fn, take, answers[0], skipped, kind)


def _waits(facts: Facts) -> dict[str, tuple[Function, ast.AST]]:
    """How an answer is given -> where one is waited for without a timeout."""
    waits: dict[str, tuple[Function, ast.AST]] = {}
    for fn in facts.module.functions:
        for call in fn.calls:
            name = short_name(call.func)
            if name == "wait" and not call.args and not has_timeout(call, "wait"):
                resource = facts.module.resource(call.func.value, fn) if isinstance(call.func, ast.Attribute) else None
                if resource is not None and resource.kind in EVENTS:
                    waits.setdefault("set", (fn, call))
            elif name == "result" and not call.args and not call.keywords:
                waits.setdefault("set_result", (fn, call))
        for wait in fn.awaits:
            if isinstance(wait.value, ast.Name) and makes_future(fn.bound.get(wait.value.id)):
                waits.setdefault("set_result", (fn, wait))
    return waits


def _made_here(facts: Facts, answer: str) -> bool:
    """Whether this file makes the event or future of a request, and passes it on."""
    for fn in facts.module.functions:
        for target, value in fn.assigns:
            kind = facts.module.constructed_kind(value, fn) if isinstance(value, ast.Call) else None
            fits = makes_future(value) if answer == "set_result" else kind in EVENTS
            if fits and isinstance(target, ast.Name | ast.Attribute):
                name = dotted(target)
                if any(dotted(n) == name and _passed(n) for n in (*fn.names, *fn.attributes)):
                    return True
                if isinstance(target, ast.Attribute) and fn.name == "__init__":
                    return True  # a request that brings its own
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
    fn: Function, take: ast.Call, answer: ast.Call, skipped: Skipped, waiter: tuple[Function, ast.AST]
) -> Witness:
    at = getattr(waiter[1], "lineno", waiter[0].line)
    return Witness(
        answer,
        fn,
        take=take,
        how=f"if line {skipped.node.line} raises" if skipped.raised else f"on the way over line {skipped.node.line}",
        waiter=waiter,
        edge=at,
        skipped=skipped,
        continues="raises, and does not answer" if skipped.raised else "continues without an answer",
    )
