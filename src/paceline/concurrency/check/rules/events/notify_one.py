"""A notification that wakes one waiter where all of them have to see the change."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.threads.shared_state import is_teardown

CONDITIONS = ("Condition", "AsyncCondition")


def find(facts: Facts) -> Iterator[Witness]:
    """Report functions that end something and notify one waiter, where the waiters are several."""
    for fn in facts.module.functions:
        for call in fn.calls:
            resource = resource_of(call, ("notify",), fn, facts)
            if resource is None or resource.kind not in CONDITIONS or call.args or call.keywords:
                continue
            flags = {dotted(t) for t, v in fn.assigns if isinstance(v, ast.Constant) and t.lineno <= call.lineno}
            if not is_teardown(fn):
                flags = {flag for flag in flags if _stays(flag, fn, facts)}
            waits = list(_waits(resource.id, facts))
            asking = [(f, w) for f, w in waits if _asks(w, flags, fn, f)]
            if not asking and (kinds := _of_two_kinds(call, waits)) is not None:
                yield _report_kinds(call, fn, resource.id, *kinds)
            if asking and (len({id(f) for f, _ in waits}) > 1 or _in_several(asking[0][0], facts)):
                yield _report(call, fn, resource.id, *asking[0])


def _of_two_kinds(
    call: ast.Call, waits: list[tuple[Function, ast.Call]]
) -> tuple[tuple[Function, ast.Call], tuple[Function, ast.Call]] | None:
    """Two waits for the notified condition that ask for different things, in functions that both notify one waiter."""
    name = short_name(call.func.value)  # type: ignore[attr-defined]
    same = [(f, w) for f, w in waits if short_name(w.func.value) == name]  # type: ignore[attr-defined]
    tests = {id(f): ast.dump(loop.test) for f, w in same if isinstance(loop := enclosing(w, ast.While), ast.While)}
    notifying = [(f, w) for f, w in same if any(short_name(c.func) == "notify" for c in f.calls) and id(f) in tests]
    both = [pair for pair in notifying if tests[id(pair[0])] != tests[id(notifying[0][0])]]
    return (notifying[0], both[0]) if both and notifying[0][1].lineno < call.lineno < both[0][1].lineno else None


def _report_kinds(
    call: ast.Call, fn: Function, condition: str, one: tuple[Function, ast.Call], two: tuple[Function, ast.Call]
) -> Witness:
    return Witness(call, fn, "kinds", one=one, two=two, condition=condition)


def _stays(flag: str, fn: Function, facts: Facts) -> bool:
    """Whether a flag that a method sets is never assigned again, besides where the object is made."""
    name = flag.removeprefix(f"{fn.self_name}.")
    if fn.cls is None or name == flag:
        return False
    others = (other for other in facts.module.functions if other is not fn and other.name != "__init__")
    return not any(isinstance(t, ast.Attribute) and t.attr == name for other in others for t, _ in other.assigns)


def _waits(condition: str, facts: Facts) -> Iterator[tuple[Function, ast.Call]]:
    """Where a condition is waited for without a timeout."""
    for fn in facts.module.functions:
        for call in fn.calls:
            resource = resource_of(call, ("wait", "wait_for"), fn, facts)
            if resource is not None and resource.id == condition and not has_timeout(call, short_name(call.func)):
                yield fn, call


def _asks(wait: ast.Call, flags: set[str], ends: Function, fn: Function) -> bool:
    """Whether a waiter asks for one of the flags, in a test around the wait or in its predicate."""
    around = (enclosing(wait, ast.While), enclosing(wait, ast.If))
    expressions: list[ast.AST] = [*wait.args, *(test for test in around if test is not None)]
    names = {f"{fn.self_name}.{flag.removeprefix(ends.self_name + '.')}" for flag in flags}
    return any(dotted(n) in names for part in expressions for n in ast.walk(part))


def _in_several(fn: Function, facts: Facts) -> bool:
    """Whether several threads run a function: it is public, or a thread that is started more than once."""
    roots = [root for root in facts.roots if root.function is fn]
    return any(root.several for root in roots) or (not roots and not fn.name.startswith("_"))


def _report(call: ast.Call, fn: Function, condition: str, waiter: Function, wait: ast.Call) -> Witness:
    return Witness(call, fn, waiter=waiter, wait=wait, condition=condition)
