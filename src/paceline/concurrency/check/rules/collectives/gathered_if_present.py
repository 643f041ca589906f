"""A collective that gathers a value of each rank, under a test of that value."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, short_name
from paceline.concurrency.check.syntax.tree import enclosing

#: Collectives of a value that each rank has of its own -> its position.
GATHERS = {
    "all_gather_object": 1,
    "gather_object": 0,
    "all_gather": 1,
    "gather": 0,
    "allgather": 0,
    "gather_for_metrics": 0,
    "pad_across_processes": 0,
    "all_gather_into_tensor": 1,
}


#: Those of them that take any object, so that ranks may give what they have.
OBJECTS = {"all_gather_object", "gather_object", "allgather", "gather"}


def find(facts: Facts) -> Iterator[Witness]:
    """Report gathering collectives under a test of what they gather, without another one on the other side."""
    for fn in facts.module.functions:
        reported: set[ast.If] = set()
        for call in fn.calls:
            collective = facts.sequences.collective(call, fn) if short_name(call.func) in GATHERS else None
            name = _given(call) if collective is not None else ""
            test = _test_of(name, call, fn) if name else None
            if test is not None and not _also_otherwise(test, call, fn, facts):
                yield _report(fn, call, test, name)
            elif (
                collective is not None
                and (early_exit := _left_before(call, fn, facts)) is not None
                and early_exit[1] not in reported
            ):
                reported.add(early_exit[1])
                is_difference = any(difference.test is early_exit[1] for difference in facts.sequences.differences(fn))
                if not is_difference and not _also_otherwise(early_exit[1], call, fn, facts):
                    yield _report(fn, call, early_exit[1], early_exit[0])


def _given(call: ast.Call) -> str:
    """The name of what a call gathers."""
    position = GATHERS[short_name(call.func)]
    short = position < len(call.args) or len(call.args) != 1  # `accelerator.gather(x)`, `fabric.all_gather(x)`
    value = call.args[position if short else 0] if call.args[position if short else 0 :] else None
    named = isinstance(value, ast.Name | ast.Attribute) and not short_name(value).endswith(("group", "comm", "mesh"))
    return dotted(value) if named and value is not None else ""


def _test_of(name: str, call: ast.Call, fn: Function) -> ast.If | ast.IfExp | None:
    """The condition around the call that asks whether the value is there, or has elements."""
    at = enclosing(call, ast.If, ast.IfExp)
    while isinstance(at, ast.If | ast.IfExp) and at.lineno >= fn.line:
        if _asks(at.test, name) and not _replaced(name, at, call, fn):
            return at
        at = enclosing(at, ast.If, ast.IfExp)
    return None


def _left_before(call: ast.Call, fn: Function, facts: Facts) -> tuple[str, ast.If] | None:
    """What is gathered, or computed from, and the test that leaves the function where this rank has none of it."""
    arguments = [*call.args, *(k.value for k in call.keywords)]
    direct = {dotted(a) for a in arguments} if short_name(call.func) in OBJECTS else set()
    for test in fn.tests:
        if not isinstance(test, ast.If) or test.orelse or test.lineno > call.lineno:
            continue
        if not isinstance(test.body[-1], ast.Return) or enclosing(test, ast.If, ast.For, ast.While) is not None:
            continue
        container = _empty(test.test)
        name = dotted(container) if container is not None else ""
        if container is None or not name or _replaced(name, test, call, fn):
            continue
        differs = name in _sources(arguments, fn) and facts.sequences.lengths.why(container, fn)
        if differs or name in direct:
            return name, test
    return None


def _sources(values: list[ast.expr], fn: Function) -> set[str]:
    """The names from which values are computed, through assignments of the function."""
    names, todo = set[str](), list(values)
    while todo:
        for node in ast.walk(todo.pop()):
            name = dotted(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            if name and "(" not in name and name not in names:
                names.add(name)
                todo += [value for target, value in fn.assigns if dotted(target) == name]
    return names


def _empty(test: ast.expr) -> ast.expr | None:
    """What a test finds empty: `not x`, `len(x) == 0`, `x.numel() == 0`; None when it asks something else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        counted = test.operand
        if isinstance(counted, ast.Call) and short_name(counted.func) == "len" and counted.args:
            counted = counted.args[0]
        return counted if isinstance(counted, ast.Name | ast.Attribute) else None
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Call):
        return None
    none = isinstance(test.ops[0], ast.Eq) and is_constant(test.comparators[0], 0)
    if none and short_name(test.left.func) == "len" and test.left.args:
        return test.left.args[0]
    of = test.left.func
    return of.value if none and isinstance(of, ast.Attribute) and of.attr in ("numel", "size") else None


def _asks(test: ast.expr, name: str) -> bool:
    """`x`, `x is not None`, `len(x) > 0`, as a whole or as a part of an `and`."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and any(_asks(value, name) for value in test.values)
    if isinstance(test, ast.Compare):
        none = isinstance(test.ops[0], ast.IsNot) and is_constant(test.comparators[0], None)
        left = test.left
        counted = isinstance(left, ast.Call) and short_name(left.func) == "len" and bool(left.args)
        return (none and dotted(left) == name) or (counted and dotted(left.args[0]) == name)  # type: ignore[attr-defined]
    return isinstance(test, ast.Name | ast.Attribute) and dotted(test) == name


def _replaced(name: str, test: ast.If | ast.IfExp, call: ast.Call, fn: Function) -> bool:
    """Whether the value is another one by the time it is gathered."""
    return any(dotted(t) == name and test.lineno < t.lineno < call.lineno for t, _ in fn.assigns)


def _also_otherwise(test: ast.If | ast.IfExp, call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether the other side of the condition gathers too."""
    other = test.orelse if isinstance(test.orelse, list) else [test.orelse]
    inside = {id(n) for part in other for n in ast.walk(part)}
    return any(id(c) in inside and facts.sequences.collective(c, fn) is not None for c in fn.calls if c is not call)


def _report(fn: Function, call: ast.Call, test: ast.If | ast.IfExp, name: str) -> Witness:
    condition = f"`{ast.unparse(test.test)}` (line {test.lineno})"
    return Witness(
        call,
        fn,
        name=name,
        reason=f"only the ranks call it for which {condition}"
        if any(n is call for n in ast.walk(test))
        else f"a rank returns before it for which {condition}",
        test=test,
    )
