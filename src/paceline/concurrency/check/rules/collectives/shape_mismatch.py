"""A tensor whose shape on the sending rank differs from that on the receiving ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name

MADE_OF_DATA, MADE_OF_SIZE = (
    ("tensor", "LongTensor", "FloatTensor", "IntTensor", "as_tensor", "array"),
    ("empty", "zeros", "ones"),
)
SENT = ("broadcast", "bcast", "Bcast")


def find(facts: Facts) -> Iterator[Witness]:
    """Report broadcasts of a tensor made from data on one branch and of a fixed size on the other."""
    for fn in facts.module.functions:
        for call in fn.calls:
            collective = facts.sequences.collective(call, fn)
            if collective is not None and collective.name in GATHERS:
                yield from _of_own_length(call, fn, facts)
            if (
                collective is None
                or collective.name not in SENT
                or not call.args
                or not isinstance(call.args[0], ast.Name)
            ):
                continue
            name = call.args[0].id
            for test in fn.tests:
                if (
                    isinstance(test, ast.If)
                    and test.orelse
                    and test.lineno < call.lineno
                    and facts.sequences.conditions(test.test, fn)
                ):
                    one, two = _made(name, test.body), _made(name, test.orelse)
                    of_data = next((v for v in (one, two) if v is not None and _of_list(v)), None)
                    of_size = next((v for v in (one, two) if v is not None and _of_size(v)), None)
                    if of_data is not None and of_size is not None and not _padded(of_data, test):
                        yield Witness(call, fn, of_data=of_data, of_size=of_size)


GATHERS = {"all_gather": 1, "all_gather_into_tensor": 1, "gather": 0}
KEEPS = {"to", "cuda", "cpu", "float", "long", "int", "half", "double", "contiguous", "detach", "clone", "view",
         "squeeze", "unsqueeze", "numpy", "type"}  # fmt: skip
JOINS = {
    "cat",
    "stack",
    "tensor",
    "as_tensor",
    "concatenate",
    "array",
    "from_numpy",
    "LongTensor",
    "FloatTensor",
    "hstack",
    "vstack",
    "concat",
}
FILLED = {"randn", "rand", "zeros", "ones", "empty", "full", "arange"}


def _of_own_length(call: ast.Call, fn: Function, facts: Facts) -> Iterator[Witness]:
    """A tensor that is gathered from all ranks, with as many rows as this rank has samples."""
    place = GATHERS.get(short_name(call.func), 1)
    value = call.args[place] if len(call.args) > place and facts.module.canonical(call.func) in _OF_TORCH else None
    why = _length(value, fn, facts) if value is not None else ""
    if why and value is not None:
        yield Witness(call, fn, "of-own-length", value=value, why=why)


_OF_TORCH = ("torch.distributed.all_gather", "torch.distributed.all_gather_into_tensor", "torch.distributed.gather")


def _length(node: ast.expr, fn: Function, facts: Facts, depth: int = 0) -> str:
    """Why the number of rows of a tensor differs from rank to rank; empty when it is not known to."""
    lengths = facts.sequences.lengths
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPS:
        node = node.func.value if not node.args or not dotted(node.func).startswith("torch") else node.args[0]
    while isinstance(node, ast.Attribute) and node.attr in ("data", "grad"):
        node = node.value
    if depth > DEPTH:
        return ""
    if isinstance(node, ast.Call):
        name = short_name(node.func)
        if name in ("Parameter", *KEEPS) and node.args:
            return _length(node.args[0], fn, facts, depth + 1)
        if name in FILLED and node.args:
            return lengths.number(node.args[0], fn)
        if name in JOINS and node.args:
            return lengths.why(node.args[0], fn) or _of_parts(node.args[0], fn, facts, depth)
        callee = facts.module.callee(node, fn)
        returned = [r.value for r in callee.returns if r.value is not None] if callee is not None else []
        return next((w for v in returned if (w := _length(v, callee, facts, depth + 1))), "")  # type: ignore[arg-type]
    if isinstance(node, ast.Subscript):
        return lengths.why(node, fn)
    if isinstance(node, ast.Name):
        bindings = [v for t, v in fn.assigns if isinstance(t, ast.Name) and t.id == node.id and t.lineno < node.lineno]
        if not bindings and node.id in fn.parameters:
            passed = facts.module.objects.arguments(fn, node.id)
            return next((w for a in passed if (w := _length(a.value, a.caller, facts, depth + 1))), "")
        return _length(bindings[-1], fn, facts, depth + 1) if bindings else ""
    if isinstance(node, ast.Attribute):
        owner = facts.module.type_of(node.value, fn)
        values = [pair for cls in owner.ancestry for pair in cls.values.get(node.attr, ())] if owner is not None else []
        return next((w for v, scope in values if (w := _length(v, scope, facts, depth + 1))), "")
    return ""


def _of_parts(node: ast.expr, fn: Function, facts: Facts, depth: int) -> str:
    """Why the parts of a list that are joined have other numbers of rows on each rank."""
    filled = (c.args[0] for c in fn.calls if c.args and dotted(c.func) == f"{dotted(node)}.append")
    return next((w for part in filled if (w := _length(part, fn, facts, depth + 1))), "")


DEPTH = 6


def _made(name: str, body: list[ast.stmt]) -> ast.Call | None:
    """The call that creates the tensor of this name in a body."""
    call = None
    for statement in body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and statement.targets[0].id == name
        ):
            value = statement.value
            while (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Attribute)
                and isinstance(value.func.value, ast.Call)
            ):
                value = value.func.value  # .view(-1), .to(device)
            call = value if isinstance(value, ast.Call) else None
    return call


def _of_list(call: ast.Call) -> bool:
    return short_name(call.func) in MADE_OF_DATA and bool(call.args) and isinstance(call.args[0], ast.Name)


def _of_size(call: ast.Call) -> bool:
    return short_name(call.func) in MADE_OF_SIZE


def _padded(call: ast.Call, test: ast.If) -> bool:
    """Whether the list is padded to a fixed size: `x += [0] * (n - len(x))`."""
    name = call.args[0].id  # type: ignore[attr-defined]
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Call):
            padding = node.right
            if short_name(padding.func) == "len" and ast.unparse(padding.args[0]) == name:
                return True
    return False
