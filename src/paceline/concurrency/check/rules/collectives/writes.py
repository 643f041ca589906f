"""Files that ranks write, without a barrier or all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import RANK_CALLS, RANK_DECORATORS, RANK_NAMES
from paceline.concurrency.check.ranks.branches import condition
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    contexts_around,
    dotted,
    is_constant,
    keyword,
    last_line,
    short_name,
)
from paceline.concurrency.check.values.calls import is_own_file

MAKES = libraries.words("functions that make files")
USES = libraries.words("functions that read files")
WAITS = ("barrier", "wait_for_everyone", "synchronize", "rendezvous", "wait", "sync", "join")
MODES = ("w", "a", "x")


def missing_barrier(facts: Facts) -> Iterator[Witness]:
    """Report paths that one rank makes in a branch and every rank uses after it, without a barrier."""
    for fn in facts.module.functions:
        for test in fn.tests:
            if isinstance(test, ast.If) and not test.orelse and _one_rank(test, fn, facts):
                use = _used_after(test, fn, facts)
                if use is not None:
                    maker, user, path = use
                    yield Witness(user, fn, path=path, maker=maker, test=test)
                    break


def _one_rank(test: ast.If, fn: Function, facts: Facts) -> bool:
    """Whether only the first rank takes a branch, and continues after it."""
    parts = test.test.values if isinstance(test.test, ast.BoolOp) and isinstance(test.test.op, ast.And) else [test.test]
    conditions = [c for part in parts if (c := condition(part, fn, facts.module)) is not None]
    # A rank that leaves here comes to none of the uses that follow.
    if isinstance(test.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
        return False
    return any(not c.local and not c.group and (c.sign or not c.key.endswith("== 0")) for c in conditions)


def _used_after(test: ast.If, fn: Function, facts: Facts) -> tuple[ast.Call, ast.Call, str] | None:
    """The call that makes a path in the branch, the next call that uses it on every rank, and the path."""
    inside = [c for c in fn.calls if test.body[0].lineno <= c.lineno <= last_line(test)]
    # The one rank meets the others inside the branch, which then are at a barrier of their own.
    if any(_waits(c, fn, facts) for c in inside):
        return None
    makers = [(c, path) for c in inside if _makes(c) or _leads_to_making(c, fn, facts) for path in _paths(c, fn, facts)]
    for call in sorted(fn.calls, key=lambda c: (c.lineno, c.col_offset)) if makers else ():
        # A use under a further test of the rank may be that of the one that has made the file.
        if call.lineno <= last_line(test) or facts.sequences.tests_around(call, fn):
            continue
        if _waits(call, fn, facts):
            return None
        if _uses(call):
            for maker, path in makers:
                if path in _paths(call, fn, facts):
                    return maker, call, path
    return None


def _waits(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call waits for the other ranks, itself or in a function of this file."""
    name = short_name(call.func)
    if name in WAITS or any(word in name for word in ("barrier", "broadcast", "all_reduce", "all_gather", "sync")):
        return True
    if facts.sequences.collective(call, fn) is not None:
        return True
    callee = facts.module.callee(call, fn)
    return callee is not None and bool(facts.sequences.whole(callee).items)


def _makes(call: ast.Call) -> bool:
    name = short_name(call.func)
    if name == "open":
        constants = [a for a in (*call.args[1:2], *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
        return any(isinstance(a.value, str) and a.value.startswith(MODES) for a in constants)
    return name in MAKES or name.startswith(("download", "save_", "write_", "prepare_", "create_", "build_"))


def _leads_to_making(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a function of this file that is called makes a file."""
    callee = facts.module.callee(call, fn)
    return callee is not None and any(_makes(inner) for inner in callee.calls)


def _uses(call: ast.Call) -> bool:
    name = short_name(call.func)
    return (name in USES or name.startswith(("load_", "read_"))) and not _makes(call)


def _paths(call: ast.Call, fn: Function, facts: Facts) -> set[str]:
    """The names among the arguments of a call, or of its object, which may be paths that other ranks know, too."""
    arguments = [*call.args, *(k.value for k in call.keywords)]
    if isinstance(call.func, ast.Attribute):
        arguments.append(call.func.value)
    nodes = {dotted(n): n for g in arguments for n in ast.walk(g) if isinstance(n, ast.Name | ast.Attribute)}
    named = (text for text in nodes if any(word in text.rpartition(".")[2].lower() for word in PATHS))
    return {text for text in named if not is_own_file(nodes[text], fn, facts.module)}


PATHS = ("path", "dir", "file", "folder", "root", "cache", "dest", "target", "output", "fname", "ckpt", "name")


SAVES = {"torch.save": 1, "pickle.dump": 1, "json.dump": 1, "numpy.save": 0, "numpy.savez": 0}
FETCHES = ("urlretrieve", "snapshot_download", "extractall")


def every_rank_writes(facts: Facts) -> Iterator[Witness]:
    """Report torch.save and downloads that no condition on the rank guards, in files that start a process group."""
    started = _joining(facts)
    for fn in facts.module.functions if started else ():
        # Of the programs that a file may hold, only those that start a process group run on several ranks.
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
    calls = ((fn, c) for c, fn in facts.module.calls if short_name(c.func) in starts)
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
    """Whether only some ranks come to a node, or one after the other."""
    entered = [dotted(context).lower() for context in contexts_around(node)]
    return bool(facts.sequences.tests_around(node, fn)) or any("first" in e or "lock" in e for e in entered)
