"""A barrier with another number of parties than threads that meet at it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import parent
from paceline.concurrency.check.threads.roots import STARTS, in_loop


def find(facts: Facts) -> Iterator[Witness]:
    """Report functions that start as many threads as a barrier has parties, and wait at it themselves, or one less."""
    if not any(short_name(c.func) == "Barrier" for fn in facts.module.functions for c in fn.calls):
        return
    for fn in facts.module.functions:
        for call in fn.calls:
            count, runs = _started(call, fn, facts)
            if runs is None:
                continue
            for barrier, wait in _waits(runs, facts).items():
                parties = _parties(barrier, facts)
                waits = [c for c in fn.calls if _waits_at(c, fn, facts) == barrier and not in_loop(c, fn)]
                others = [f for f in facts.module.functions if f not in (fn, runs) and barrier in _waits(f, facts)]
                if parties is None or others or any(has_timeout(c, "wait") for c in (*waits, wait)):
                    continue
                if waits and _same(parties, count, fn):
                    yield Witness(waits[0], fn, barrier=barrier, runs=runs, what="one party more comes than it has")
                elif not waits and _one_more(parties, count, fn):
                    yield Witness(wait, runs, barrier=barrier, runs=runs, what="one party less comes than it has")


def _started(call: ast.Call, fn: Function, facts: Facts) -> tuple[ast.expr | None, Function | None]:
    """The function of which a loop, or a comprehension, makes so many threads."""
    if short_name(call.func) not in ("Thread", "Process"):
        return None, None
    _, word, position = STARTS[short_name(call.func)]
    target = keyword(call, word, position)
    at = parent(call)
    while at is not None and not isinstance(at, ast.For | ast.ListComp | ast.FunctionDef | ast.Module):
        at = parent(at)
    over = at.iter if isinstance(at, ast.For) else at.generators[0].iter if isinstance(at, ast.ListComp) else None
    counted = isinstance(over, ast.Call) and short_name(over.func) == "range" and len(over.args) == 1
    runs = facts.module.function_named(target, fn) if target is not None and counted else None
    return (over.args[0], runs) if isinstance(over, ast.Call) and runs is not None else (None, None)


def _waits(fn: Function, facts: Facts) -> dict[str, ast.Call]:
    """The barriers at which a function waits."""
    return {name: c for c in fn.calls if (name := _waits_at(c, fn, facts))}


def _waits_at(call: ast.Call, fn: Function, facts: Facts) -> str:
    resource = resource_of(call, ("wait",), fn, facts)
    return resource.id if resource is not None and resource.kind == "Barrier" and not resource.one_of_several else ""


def _parties(barrier: str, facts: Facts) -> ast.expr | None:
    """The number of parties of a barrier, where one place makes it."""
    constructions = [
        value
        for fn in facts.module.functions
        for target, value in fn.assigns
        if isinstance(value, ast.Call) and short_name(value.func) == "Barrier" and value.args
        if (resource := facts.module.resource(target, fn)) is not None and resource.id == barrier
    ]
    return constructions[0].args[0] if len(constructions) == 1 else None


def _same(one: ast.expr, other: ast.expr | None, fn: Function) -> bool:
    """Whether two numbers are the same: written alike, as an attribute or as the variable that it was given."""
    if other is None:
        return False
    left, right = _plain(one, fn), _plain(other, fn)
    return left == right


def _plain(node: ast.expr, fn: Function) -> str:
    text = ast.unparse(node)
    for target, value in fn.cls.methods["__init__"].assigns if fn.cls and "__init__" in fn.cls.methods else ():
        if dotted(target) == text and isinstance(value, ast.Name | ast.Constant):
            return ast.unparse(value)
    return text


def _one_more(parties: ast.expr, count: ast.expr | None, fn: Function) -> bool:
    """Whether a number is another one and one."""
    if not isinstance(parties, ast.BinOp) or not isinstance(parties.op, ast.Add):
        return False
    return is_constant(parties.right, 1) and _same(parties.left, count, fn)
