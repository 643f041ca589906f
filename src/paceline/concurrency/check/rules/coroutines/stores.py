"""Values that are read from a store and written back across awaits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import contexts_around
from paceline.concurrency.check.threads.shared_state import BEGINNINGS

READ = re.compile(r"_*(get|load|read|retrieve|fetch)(_\w+)?$")
WRITTEN = re.compile(r"_*(set|save|write|store|put)(_\w+)?$")


def written_back(facts: Facts) -> Iterator[Witness]:
    """Report values that are read and written back across awaits, without a lock."""
    for fn in facts.module.functions:
        if not fn.asynchronous or len(fn.awaits) < 2 or fn.name in BEGINNINGS or "lock" in fn.name:
            continue
        reads = [(t.id, v.value) for t, v in fn.assigns if _reads(t, v)]  # type: ignore[attr-defined]
        for write in (a.value for a in fn.awaits if isinstance(a.value, ast.Call)):
            name = WRITTEN.match(short_name(write.func))
            witness = next(((n, r) for n, r in reads if name and _belongs(n, r, write, name[2], fn)), None)
            if witness is not None and not _guarded(write, fn, facts):
                yield Witness(write, fn, name=witness[0], read=witness[1])
                return


def _reads(target: ast.expr, value: ast.expr) -> bool:
    """Whether a variable gets what a coroutine named so has read."""
    call = value.value if isinstance(value, ast.Await) else None
    return isinstance(target, ast.Name) and isinstance(call, ast.Call) and READ.match(short_name(call.func)) is not None


def _belongs(name: str, read: ast.Call, write: ast.Call, what: str | None, fn: Function) -> bool:
    """Whether what was read is changed and then written to where it was read from."""
    same = READ.match(short_name(read.func))
    if same is None or same[2] != what or read.lineno >= write.lineno or _owner(read) != _owner(write):
        return False
    write_keys, read_keys = _given(write), _given(read)
    keys = [text for text in read_keys if text in write_keys]
    if not read_keys:  # there is one value only, which is changed here
        changed = any(dotted(t).startswith(f"{name}[") for t, _ in fn.assigns) or any(
            dotted(a.target).partition("[")[0] == name for a in fn.augmented
        )
        return write_keys == [name] and changed
    return (
        bool(keys)
        and keys[0] != name
        and any(re.search(rf"\b{name}\b", text) for text in write_keys if text not in keys)
    )


def _owner(call: ast.Call) -> str:
    """The object of which a call is a method."""
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _given(call: ast.Call) -> list[str]:
    """The arguments of a call as text."""
    return [ast.unparse(a) for a in [*call.args, *(k.value for k in call.keywords)]]


def _guarded(write: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether something is entered around the write: a lock, or a transaction."""
    return bool(facts.held_at(write, fn)) or any(True for _ in contexts_around(write))
