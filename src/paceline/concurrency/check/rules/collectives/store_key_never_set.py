"""A key of a store that a rank waits for, and that no rank is sure to set."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.values.library_types import type_name

STORES = ("torch.distributed.TCPStore", "torch.distributed.FileStore", "torch.distributed.HashStore")
SETS, WAITS = {"set", "add", "compare_set", "append", "multi_set"}, {"get", "wait", "multi_get"}


class Use(NamedTuple):
    """A call that sets keys or waits for them."""

    call: ast.Call
    fn: Function
    keys: tuple[str, ...]  # as patterns: `addr/*` of `f"addr/{rank}"`; empty where they are not known


def find(facts: Facts) -> Iterator[Witness]:
    """Report keys that are waited for and never set, or only under a condition of the rank that sets them."""
    stores = [c for fn in facts.module.functions for c in fn.calls if facts.module.canonical(c.func) in STORES]
    if not stores:
        return
    uses = [_use(call, fn) for fn in facts.module.functions for call in fn.calls if _of_store(call, fn, facts)]
    sets = [use for use in uses if short_name(use.call.func) in SETS]
    if not sets or any(not use.keys for use in sets):
        return
    for use in uses:
        for key in use.keys if short_name(use.call.func) in WAITS else ():
            setting = [s for s in sets if any(_may_be(key, other) for other in s.keys)]
            if not setting:
                yield _report(use, key, sets[0], "no rank sets this key")
                break
            tests = [_own_condition(s, use, facts) for s in setting]
            if all(test is not None for test in tests):
                how = f"only a rank with `if {ast.unparse(tests[0].test)}` (line {tests[0].lineno}) sets it"  # type: ignore[union-attr]
                yield _report(use, key, setting[0], how)
                break


def _of_store(call: ast.Call, fn: Function, facts: Facts) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in SETS | WAITS:
        return False
    owner = type_name(call.func.value, fn, facts.module)
    return owner in STORES or (not owner and short_name(call.func.value).lower().strip("_").endswith("store"))


def _use(call: ast.Call, fn: Function) -> Use:
    return Use(call, fn, _patterns(keyword(call, "keys") or keyword(call, "key", 0), fn))


def _patterns(node: ast.expr | None, fn: Function) -> tuple[str, ...]:
    """The keys that an expression stands for."""
    if isinstance(node, ast.Name):
        node = fn.bound.get(node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(key for element in node.elts for key in _patterns(element, fn))
    if isinstance(node, ast.ListComp):
        return _patterns(node.elt, fn)
    if isinstance(node, ast.Constant):
        return (node.value,) if isinstance(node.value, str) else ()
    if isinstance(node, ast.JoinedStr):
        return ("".join(str(v.value) if isinstance(v, ast.Constant) else "*" for v in node.values),)
    return ()


def _may_be(key: str, other: str) -> bool:
    return fnmatchcase(key.replace("*", "0"), other) or fnmatchcase(other.replace("*", "0"), key)


def _own_condition(setting: Use, waiting: Use, facts: Facts) -> ast.If | None:
    """The condition under which alone a key is set, inside a branch of some ranks; None when the others share it."""
    test = enclosing(setting.call, ast.If)
    outer = enclosing(test, ast.If) if test is not None else None
    if not isinstance(test, ast.If):
        return None
    both = isinstance(test.test, ast.BoolOp) and len(facts.sequences.conditions(test.test, setting.fn)) == 1
    nested = isinstance(outer, ast.If) and bool(facts.sequences.conditions(outer.test, setting.fn))
    if any(short_name(n.func) in SETS for s in test.orelse for n in ast.walk(s) if isinstance(n, ast.Call)):
        return None  # either side sets it
    if not both and not (nested and not facts.sequences.conditions(test.test, setting.fn)):
        return None
    branch = enclosing(waiting.call, ast.If)
    while isinstance(branch, ast.If):
        if ast.unparse(branch.test) == ast.unparse(test.test):
            return None
        branch = enclosing(branch, ast.If)
    return test


def _report(use: Use, key: str, setting: Use, how: str) -> Witness:
    shown = key.replace("*", "...")
    return Witness(use.call, use.fn, shown=shown, how=how, setting=setting)
