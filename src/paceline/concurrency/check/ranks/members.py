"""How many ranks take a branch, and the process groups that are made of exactly these.

`if rank <= 1: init_process_group(rank=rank, world_size=2)` makes a group of the ranks that take the branch: no other
rank is waited for, neither there nor in the collectives that follow in the branch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.ranks.branches import of_rank
from paceline.concurrency.check.ranks.collectives import written
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import keyword
from paceline.concurrency.check.syntax.tree import parent
from paceline.concurrency.check.values.module import Module

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq,
    ast.NotIn: ast.In,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}


def makes_own_group(call: ast.Call, fn: Function, module: Module) -> bool:
    """Whether a call makes the default group of as many ranks as take the branch that it is in."""
    if module.canonical(call.func) != "torch.distributed.init_process_group":
        return False
    size = written(keyword(call, "world_size", 3))
    return any(size == few if holds else size.endswith(f" - {few}") for few, holds in _sizes(call, fn, module))


def _sizes(node: ast.AST, fn: Function, module: Module) -> Iterator[tuple[str, bool]]:
    """For how many ranks each test of the rank around a node holds, and whether the node is where it does."""
    at, around = node, parent(node)
    while around is not None and at is not fn.node:
        test = around.test if isinstance(around, ast.If) and at is not around.test else None
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and of_rank(test.left, fn, module) is not None:
            op, right = type(test.ops[0]), test.comparators[0]
            holds = at in around.body  # type: ignore[attr-defined]
            if few := _counted(_OPPOSITE.get(op, op), right):
                yield few, holds != (op in _OPPOSITE)
        at, around = around, parent(around)


def _counted(op: type[ast.cmpop], right: ast.expr) -> str:
    """The number of ranks for which a comparison of the rank holds, as it may be written; empty if unknown."""
    if op is ast.Eq:
        return "1"
    if op is ast.In:
        return str(len(right.elts)) if isinstance(right, ast.List | ast.Tuple | ast.Set) else ""
    if op is ast.LtE:
        number = right.value if isinstance(right, ast.Constant) else None
        return str(number + 1) if isinstance(number, int) else f"{ast.unparse(right)} + 1"
    return ast.unparse(right) if op is ast.Lt else ""
