"""What one rank makes and the others use, without a barrier in between."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.ranks.branches import condition
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import enclosing, last_line
from paceline.concurrency.check.values.library_types import is_own_file

MAKES = ("save", "makedirs", "mkdir", "download", "dump", "write", "rmtree", "remove", "unlink", "extract", "touch",
         "extractall", "to_csv", "to_parquet", "to_disk", "copy", "copyfile", "copytree", "move", "rename", "replace",
         "symlink", "savez", "savetxt", "write_text", "write_bytes", "prepare", "preprocess", "tokenize", "urlretrieve",
         "snapshot_download", "hf_hub_download")  # fmt: skip
USES = ("load", "open", "exists", "isfile", "isdir", "is_file", "is_dir", "listdir", "iterdir", "glob", "rglob",
        "getsize", "read", "read_text", "read_bytes", "memmap", "from_pretrained", "chdir")  # fmt: skip
WAITS = ("barrier", "wait_for_everyone", "synchronize", "rendezvous", "wait", "sync", "join")
MODES = ("w", "a", "x")


def find(facts: Facts) -> Iterator[Witness]:
    """Report paths that one rank makes in a branch and every rank uses after it, without a barrier."""
    for fn in facts.module.functions:
        for test in fn.tests:
            if isinstance(test, ast.If) and not test.orelse and _one_rank(test, fn, facts):
                witness = _used_after(test, fn, facts)
                if witness is not None:
                    yield _report(fn, test, *witness)
                    break


def _one_rank(test: ast.If, fn: Function, facts: Facts) -> bool:
    """Whether only the first rank takes a branch, and continues after it."""
    parts = test.test.values if isinstance(test.test, ast.BoolOp) and isinstance(test.test.op, ast.And) else [test.test]
    conditions = [c for part in parts if (c := condition(part, fn, facts.module)) is not None]
    if isinstance(test.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
        return False
    return any(not c.local and not c.group and (c.sign or not c.key.endswith("== 0")) for c in conditions)


def _used_after(test: ast.If, fn: Function, facts: Facts) -> tuple[ast.Call, ast.Call, str] | None:
    """The call that makes a path in the branch, the next call that uses it on every rank, and the path."""
    inside = [c for c in fn.calls if test.body[0].lineno <= c.lineno <= last_line(test)]
    if any(_waits(c, fn, facts) for c in inside):
        return None
    makers = [(c, path) for c in inside if _makes(c) or _leads_to_making(c, fn, facts) for path in _paths(c, fn, facts)]
    for call in sorted(fn.calls, key=lambda c: (c.lineno, c.col_offset)) if makers else ():
        if call.lineno <= last_line(test) or not _every_rank(call, fn, facts):
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


def _every_rank(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether no condition on the rank is around a call."""
    around = enclosing(call, ast.If)
    while isinstance(around, ast.If):
        parts = around.test.values if isinstance(around.test, ast.BoolOp) else [around.test]
        if any(condition(part, fn, facts.module) is not None for part in parts):
            return False
        around = enclosing(around, ast.If)
    return True


def _report(fn: Function, test: ast.If, maker: ast.Call, user: ast.Call, path: str) -> Witness:
    return Witness(user, fn, path=path, maker=maker, test=test)
