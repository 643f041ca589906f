"""Collectives in the order of an unordered container.

Ranks match their collectives by order. In a loop over a set, the order differs between processes (string hashes are
randomized); in a loop over a dictionary that each rank fills for itself, the keys and their number may differ too. Then
the third call of one rank is matched with the second of another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declarations import Function
from paceline.check.effects import text_of
from paceline.check.findings import Finding, Step
from paceline.check.names import dotted, short_name
from paceline.check.rules.rule import Rule, finding
from paceline.check.rules.some_ranks import RANK_WORDS
from paceline.check.sequences import flattened
from paceline.check.summaries import Facts
from paceline.check.varying import DATA


def find(facts: Facts) -> Iterator[Finding]:
    """Report collectives in loops over sets, directories and per-rank dictionaries."""
    for fn in facts.module.functions:
        if not facts.sequences.whole(fn).items:
            continue
        for loop in fn.loops:
            if not isinstance(loop, ast.For | ast.AsyncFor):
                continue
            why = _unordered(loop.iter, fn, facts)
            if not why:
                continue
            inside = [i for item in facts.sequences.body(loop.body, fn, None).items for i in flattened(item)]
            if inside and isinstance(inside[0].at, ast.Call):
                yield _report(fn, loop, inside[0].at, why)


def _unordered(over: ast.expr, fn: Function, facts: Facts) -> str:
    """Why the order of an iterable differs between ranks; empty if it does not."""
    ordered = isinstance(over, ast.Call) and short_name(over.func) == "sorted"
    while (
        isinstance(over, ast.Call)
        and short_name(over.func) in ("sorted", "list", "tuple", "enumerate", "reversed")
        and over.args
    ):
        over = over.args[0]
    if (
        not ordered
        and isinstance(over, ast.Call)
        and short_name(over.func) in ("listdir", "glob", "iglob", "iterdir", "scandir")
    ):
        return "the files of a folder, whose order differs between machines"
    if not ordered and _is_set(over, fn):
        return "a set, whose order differs between processes"
    if (
        isinstance(over, ast.Call)
        and isinstance(over.func, ast.Attribute)
        and over.func.attr in ("items", "keys", "values")
    ):
        over = over.func.value
    if isinstance(over, ast.Name) and (_filled_here(over.id, fn, facts) or _filled_by_data(over.id, fn, facts)):
        return f"{over.id}, a dictionary that every rank fills for itself"
    return ""


def _filled_by_data(name: str, fn: Function, facts: Facts) -> bool:
    """Whether this is a dictionary of the function whose keys come from the data of this rank."""
    if not _is_empty_dict(fn.bound.get(name)):
        return False
    stored = [s for s in fn.subscripts if isinstance(s.ctx, ast.Store) and dotted(s.value) == name]
    return any(facts.module.varying.why(s.slice, fn) == DATA for s in stored)


def _is_empty_dict(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and short_name(value.func) in ("dict", "defaultdict", "OrderedDict", "Counter")


def _is_set(node: ast.expr, fn: Function) -> bool:
    """Whether an expression is a set."""
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call):
        return dotted(node.func) in ("set", "frozenset")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr | ast.Sub):
        return _is_set(node.left, fn) or _is_set(node.right, fn)
    if isinstance(node, ast.Name) and node.id in fn.bound:
        values = [value for target, value in fn.assigns if isinstance(target, ast.Name) and target.id == node.id]
        return all(not isinstance(v, ast.Name) and _is_set(v, fn) for v in values)
    return False


def _filled_here(name: str, fn: Function, facts: Facts) -> bool:
    """Whether this is a dictionary of the module that functions fill while they run."""
    top = facts.module.top
    start = top.bound.get(name)
    if start is None or any(name in scope.bound for scope in fn.scopes() if scope is not top):
        return False
    return _is_empty_dict(start) and any(
        dotted(s.value) == name for f in facts.module.functions if f is not top for s in f.subscripts
    )


def _report(fn: Function, loop: ast.For | ast.AsyncFor, call: ast.Call, why: str) -> Finding:
    return finding(
        call,
        fn,
        f"{text_of(call)} is called in a loop over {why} (line {loop.lineno}): the ranks' calls do not match",
        [
            Step("rank 0", loop.lineno, "iterates over it in one order"),
            Step("rank 1", loop.lineno, "iterates in another order, or over other keys"),
            Step("rank 0", call.lineno, f"calls {text_of(call)} for one item, rank 1 for another one or not at all"),
        ],
        "gather the keys of all ranks first, and iterate over them sorted",
        text_of(call),
        0.7,
    )


RULE = Rule(
    "PC503",
    "unordered-collectives",
    "collectives in the order of an unordered container",
    find,
    bad="""
        import torch.distributed as dist

        def average(tensors, names):
            for name in set(names):
                dist.all_reduce(tensors[name])
    """,
    good="""
        import torch.distributed as dist

        def average(tensors, names):
            for name in sorted(set(names)):
                dist.all_reduce(tensors[name])
    """,
    needs=RANK_WORDS,
)
