"""A rank that decides by its own error that an iteration has converged, while its neighbours wait for the next turn."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.ranks.sequences import SKIPS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import is_within, last_line
from paceline.concurrency.check.varying.reduced import SPREADS

MESSAGES = {"Sendrecv", "sendrecv", "isend", "irecv", "Isend", "Irecv", "send", "recv", "Send", "Recv",
            "batch_isend_irecv", "Sendrecv_replace", "Neighbor_alltoall", "neighbor_alltoall"}  # fmt: skip
#: What makes one number of an array.
REDUCES = {"max", "min", "norm", "sum", "mean", "amax", "amin", "vdot", "dot"}
KEEPS = {"float", "sqrt", "item", "abs", "fabs", "detach", "cpu"}
DEPTH = 3


def find(facts: Facts) -> Iterator[Witness]:
    """Report loops with messages to neighbours that end by a number that this rank alone has computed."""
    for fn in facts.module.functions:
        for loop in fn.loops:
            if isinstance(loop, ast.comprehension):
                continue
            message = _message(loop.body, fn, facts)
            if message is None:
                continue
            for test in (loop, *(n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.If))):
                ends = isinstance(test, ast.While) or (
                    isinstance(test, ast.If) and isinstance(test.body[-1], SKIPS[:1] + SKIPS[2:3])
                )
                if ends and (name := _own_number(test, loop, fn, facts)):  # type: ignore[arg-type]
                    yield Witness(test, fn, name=name, message=message)  # type: ignore[arg-type]
                    break


def _message(body: list[ast.stmt], fn: Function, facts: Facts, depth: int = 0) -> ast.Call | None:
    """The call in some statements that exchanges a message with another rank, itself or in a function of the file."""
    mpi = any(origin.startswith(("mpi4py", "torch.distributed")) for origin in facts.module.imports.values())
    inside = {id(node) for statement in body for node in ast.walk(statement)}
    for call in fn.calls if mpi else ():
        if id(call) not in inside:
            continue
        if short_name(call.func) in MESSAGES and isinstance(call.func, ast.Attribute):
            return call
        callee = facts.module.callee(call, fn) if depth < DEPTH else None
        if callee is not None and callee is not fn and _message(callee.body, callee, facts, depth + 1) is not None:
            return call
    return None


def _own_number(test: ast.If | ast.While, loop: ast.AST, fn: Function, facts: Facts) -> str:
    """The name that a test compares with a bound, if it is a number of this rank; empty otherwise."""
    compare = test.test
    if not isinstance(compare, ast.Compare) or not isinstance(compare.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return ""
    for side in (compare.left, compare.comparators[0]):
        while isinstance(side, ast.Call) and short_name(side.func) in KEEPS:
            side = side.args[0] if side.args else side.func.value  # type: ignore[attr-defined]
        if isinstance(side, ast.Call) and isinstance(test, ast.While) and _of_array(side, fn, facts):
            return ast.unparse(side)
        if isinstance(side, ast.Name) and _computed(side.id, test, loop, fn, facts):
            return side.id
    return ""


def _computed(name: str, test: ast.AST, loop: ast.AST, fn: Function, facts: Facts) -> bool:
    """Whether a name is given a reduced array of this rank in a loop, and not reduced over the ranks since."""
    assignments = [
        (t.lineno, v) for t, v in fn.assigns if isinstance(t, ast.Name) and t.id == name and is_within(t, loop)
    ]
    if not isinstance(test, ast.While):
        assignments = [(line, value) for line, value in assignments if line <= test.lineno]  # type: ignore[attr-defined]
    if not assignments:
        return False
    line, value = max(assignments, key=lambda pair: pair[0])
    limit = last_line(loop) if isinstance(test, ast.While) else test.lineno  # type: ignore[attr-defined]
    spread = (
        line <= call.lineno <= limit
        and facts.module.varying.reduces(call, fn)
        and any(isinstance(n, ast.Name) and n.id == name for a in call.args for n in ast.walk(a))
        for call in fn.calls
    )
    return not any(spread) and _of_array(value, fn, facts)


def _of_array(value: ast.expr, fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether a value is one number made of an array, without a collective on the way."""
    while isinstance(value, ast.Call) and short_name(value.func) in KEEPS and not isinstance(value.func, ast.Name):
        value = value.args[0] if value.args else value.func.value  # type: ignore[attr-defined]
    while isinstance(value, ast.Call) and short_name(value.func) in KEEPS and value.args:
        value = value.args[0]
    if not isinstance(value, ast.Call) or SPREADS.search(short_name(value.func)):
        return False
    callee = facts.module.callee(value, fn)
    if callee is not None:
        reduced = any(facts.module.varying.reduces(call, callee) for call in callee.calls)
        returned = [r.value for r in callee.returns if r.value is not None]
        return not reduced and depth < DEPTH and any(_returned(v, callee, facts, depth + 1) for v in returned)
    return short_name(value.func) in REDUCES and isinstance(value.func, ast.Attribute)


def _returned(value: ast.expr, fn: Function, facts: Facts, depth: int) -> bool:
    if isinstance(value, ast.Name):
        value = fn.bound.get(value.id, value)
    return _of_array(value, fn, facts, depth)
