"""A file that several processes or threads read, change and write again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, keyword, short_name
from paceline.concurrency.check.syntax.tree import contexts_around
from paceline.concurrency.check.threads.sharing import may_overlap

LOCKS = ("flock", "lockf", "FileLock", "locking", "SoftFileLock")


def find(facts: Facts) -> Iterator[Witness]:
    """Report functions, run by several processes or threads, that read a file and then rewrite it."""
    for fn in facts.module.functions:
        opened = [c for c in fn.calls if dotted(c.func) in ("open", "io.open") and c.args] if facts.roots else []
        for write in (c for c in opened if _mode(c).startswith("w")):
            path = ast.unparse(write.args[0])
            reads = (c for c in opened if _mode(c)[:1] in ("", "r") and c.lineno < write.lineno)
            read = next((c for c in reads if ast.unparse(c.args[0]) == path), None)
            if read is None or _locked(fn, write, facts) or not _by_several(fn, facts):
                continue
            yield Witness(write, fn, path=path, read=read)
            break


def _mode(call: ast.Call) -> str:
    mode = keyword(call, "mode", 1)
    return str(mode.value) if isinstance(mode, ast.Constant) else "" if mode is None else "?"


def _locked(fn: Function, write: ast.Call, facts: Facts) -> bool:
    """Whether a lock of the program or of the file is held."""
    entered = any("lock" in ast.unparse(context).lower() for context in contexts_around(write))
    return entered or bool(facts.held_at(write, fn)) or any(short_name(c.func) in LOCKS for c in fn.calls)


def _by_several(fn: Function, facts: Facts) -> bool:
    """Whether several processes, or threads, run a function at once."""
    tags = facts.reached.get(id(fn), set())
    several = {f"{r.kind}:{r.function.qualname}" for r in facts.roots if r.kind == "process" and r.several}
    return bool(tags & several) or may_overlap(fn, fn, facts)
