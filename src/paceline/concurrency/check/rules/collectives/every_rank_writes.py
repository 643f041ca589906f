"""One file that every rank writes or downloads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import RANK_CALLS, RANK_DECORATORS, RANK_NAMES
from paceline.concurrency.check.ranks.branches import condition
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.values.library_types import is_own_file

SAVES = {"torch.save": 1, "pickle.dump": 1, "json.dump": 1, "numpy.save": 0, "numpy.savez": 0}
FETCHES = ("urlretrieve", "snapshot_download", "extractall")


def find(facts: Facts) -> Iterator[Witness]:
    """Report torch.save and downloads that no condition on the rank guards, in files that start a process group."""
    started = _joining(facts)
    for fn in facts.module.functions if started else ():
        if fn.decorated(*RANK_DECORATORS) or _asks(fn) or not facts.module.meeting.of_one_program(started, fn, fn.line):
            continue
        for call in fn.calls:
            what = _writes(call, facts)
            if what and _called_by_all(fn, facts) and not _guarded(call, fn, facts) and not _apart(call, fn, facts):
                yield Witness(call, fn, what=what)
                break


def _joining(facts: Facts) -> list[tuple[Function, int]]:
    """Where process groups are started: programs of several ranks, not libraries. Each a function and a line."""
    starts = ("init_process_group", "init_distributed", "init")
    libraries = ("distributed", "deepspeed", "horovod", "dist.")
    calls = ((fn, c) for fn in facts.module.functions for c in fn.calls if short_name(c.func) in starts)
    return [(fn, c.lineno) for fn, c in calls if any(w in facts.module.canonical(c.func) for w in libraries)]


def _asks(fn: Function) -> bool:
    """Whether a function deals with the rank in any way: then it knows which rank writes where."""
    called = any(short_name(c.func) in RANK_CALLS for c in fn.calls)
    named = any(n.id.lower().strip("_") in RANK_NAMES for n in fn.names) or any(
        a.attr.lower().strip("_") in RANK_NAMES for a in fn.attributes
    )
    return called or named or any(name.lower().strip("_") in RANK_NAMES for name in fn.parameters)


def _called_by_all(fn: Function, facts: Facts) -> bool:
    """Whether a caller of this file calls the function on every rank."""
    calls = facts.callers.get(id(fn), ())
    return any(not _guarded(e.effect.node, caller, facts) and not _leaves(caller, facts) for caller, e in calls)


def _leaves(fn: Function, facts: Facts) -> bool:
    """Whether a function sends the other ranks away with a return."""
    return any(
        isinstance(t, ast.If) and isinstance(t.body[-1], ast.Return) and condition(t.test, fn, facts.module) is not None
        for t in fn.tests
    )


def _writes(call: ast.Call, facts: Facts) -> str:
    """The path that a call writes, or what it downloads; empty when it does neither."""
    name = facts.module.canonical(call.func)
    if name in SAVES and len(call.args) > SAVES[name]:
        return ast.unparse(call.args[SAVES[name]])
    if short_name(call.func) in FETCHES:
        return text_of(call)
    return text_of(call) if is_constant(keyword(call, "download"), True) else ""


def _apart(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether each rank writes to a path of its own, which it may have opened in another function."""
    arguments = [fn.bound.get(a.id, a) if isinstance(a, ast.Name) else a for a in call.args]
    opened = [facts.module.callee(a, fn) for a in arguments if isinstance(a, ast.Call)]
    inner = [(r.value, f) for f in opened if f is not None for r in f.returns if isinstance(r.value, ast.Call)]
    paths = [(a, fn) for a in arguments] + [(a, f) for call, f in inner for a in getattr(call, "args", ())]
    module = facts.module
    return any(module.varying.why(path, scope) or is_own_file(path, scope, module) for path, scope in paths)


def _guarded(node: ast.AST, fn: Function, facts: Facts) -> bool:
    around = enclosing(node, ast.If, ast.With)
    while around is not None:
        if isinstance(around, ast.If):
            parts = around.test.values if isinstance(around.test, ast.BoolOp) else [around.test]
            if any(condition(part, fn, facts.module) is not None for part in parts):
                return True
        elif isinstance(around, ast.With) and any(
            "first" in dotted(getattr(i.context_expr, "func", i.context_expr))
            or "lock" in dotted(i.context_expr).lower()
            for i in around.items
        ):
            return True
        around = enclosing(around, ast.If, ast.With)
    return False
