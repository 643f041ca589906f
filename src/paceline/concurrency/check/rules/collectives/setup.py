"""World sizes and keys of stores that do not fit."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import around, enclosing, keyword, short_name
from paceline.concurrency.check.threads.roots import turns_around
from paceline.concurrency.check.values.calls import type_name

STARTS = {"init_process_group": 2, "init_rpc": 3}  # the position of `world_size`


def world_size_mismatch(facts: Facts) -> Iterator[Witness]:
    """Report processes of which so many are started, and that meet in a group of another size."""
    for call, fn in facts.module.calls:
        name = short_name(call.func)
        if name == "Process":
            started, target, arguments = turns_around(call), keyword(call, "target", 1), keyword(call, "args", 3)
        elif name in ("spawn", "start_processes"):
            started, target, arguments = keyword(call, "nprocs", 2), keyword(call, "fn", 0), keyword(call, "args", 1)
        else:
            continue
        worker = facts.module.function_named(target, fn) if target is not None else None
        if worker is None or started is None or not isinstance(arguments, ast.Tuple):
            continue
        met = _world(worker, list(arguments.elts), 0 if name == "Process" else 1)
        more = facts.sequences.lengths.more(met[1], started, fn) if met is not None else 0
        if more:
            need = "a further process finds its group complete"
            need = "the ranks wait for one that is never started" if more > 0 else need
            yield Witness(call, fn, started=started, met=met, need=need)


def _world(worker: Function, arguments: list[ast.expr], first: int) -> tuple[ast.Call, ast.expr] | None:
    """The call of the worker that joins a group, and the number of ranks as the caller writes it."""
    for call in worker.calls:
        size = keyword(call, "world_size", STARTS.get(short_name(call.func)))
        if short_name(call.func) not in STARTS or size is None:
            continue
        if isinstance(size, ast.Constant):
            return call, size
        place = list(worker.parameters).index(size.id) - first if _is_parameter(size, worker) else -1  # type: ignore[attr-defined]
        if 0 <= place < len(arguments):
            return call, arguments[place]
    return None


def _is_parameter(node: ast.expr, worker: Function) -> bool:
    return isinstance(node, ast.Name) and node.id in worker.parameters and node.id not in worker.bound


STORES = ("torch.distributed.TCPStore", "torch.distributed.FileStore", "torch.distributed.HashStore")
SETS, WAITS = {"set", "add", "compare_set", "append", "multi_set"}, {"get", "wait", "multi_get"}


class Use(NamedTuple):
    """A call that sets keys or waits for them."""

    call: ast.Call
    fn: Function
    keys: tuple[str, ...]  # as patterns: `addr/*` of `f"addr/{rank}"`; empty where they are not known


def store_key_never_set(facts: Facts) -> Iterator[Witness]:
    """Report keys that are waited for and never set, or only under a condition of the rank that sets them."""
    stores = [c for c, _ in facts.module.calls if facts.module.canonical(c.func) in STORES]
    if not stores:
        return
    uses = [_use(call, fn) for call, fn in facts.module.calls if _of_store(call, fn, facts)]
    sets = [use for use in uses if short_name(use.call.func) in SETS]
    # A key that is computed may be any that is waited for.
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
    # The ranks that wait under the same condition also have what sets the key.
    shared = any(ast.unparse(branch.test) == ast.unparse(test.test) for branch in around(waiting.call, ast.If))
    return None if shared else test


def _report(use: Use, key: str, setting: Use, how: str) -> Witness:
    shown = key.replace("*", "...")
    return Witness(use.call, use.fn, shown=shown, how=how, setting=setting)
