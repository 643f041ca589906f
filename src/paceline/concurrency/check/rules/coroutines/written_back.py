"""A value that a task reads from a store, changes, and writes back after it has waited.

`history = await self.get_history(key)` and then `await self.set_history(key, history)` let the loop run other tasks in
between: one of them reads the same old value, and of two changes one is lost; a limit that is tested in between does
not hold. Hold a lock over both, or let the store do it in one step. Reported where a coroutine reads and writes by
names that belong together (`get` and `set`, `load_user` and `save_user`) with the same key.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import contexts_around
from paceline.concurrency.check.threads.shared_state import BEGINNINGS

READ = re.compile(r"_*(get|load|read|retrieve|fetch)(_\w+)?$")
WRITTEN = re.compile(r"_*(set|save|write|store|put)(_\w+)?$")


def find(facts: Facts) -> Iterator[Finding]:
    """Report values that are read and written back across awaits, without a lock."""
    for fn in facts.module.functions:
        if not fn.asynchronous or len(fn.awaits) < 2 or fn.name in BEGINNINGS or "lock" in fn.name:
            continue
        reads = [(t.id, v.value) for t, v in fn.assigns if _reads(t, v)]  # type: ignore[attr-defined]
        for write in (a.value for a in fn.awaits if isinstance(a.value, ast.Call)):
            name = WRITTEN.match(short_name(write.func))
            witness = next(((n, r) for n, r in reads if name and _belongs(n, r, write, name[2], fn)), None)
            if witness is not None and not _guarded(write, fn, facts):
                yield _report(fn, witness[0], witness[1], write)
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


def _report(fn: Function, name: str, read: ast.Call, write: ast.Call) -> Finding:
    written = dotted(write.func)
    return finding(
        write,
        fn,
        f"{name} is read at line {read.lineno} and written back here, across awaits: a change that another task makes "
        "in between is lost",
        [
            Step("task A", read.lineno, f"{fn.qualname} reads {name}"),
            Step("task B", read.lineno, "reads the same value, and changes it"),
            Step("task B", write.lineno, "writes its change"),
            Step("task A", write.lineno, "writes its own over it"),
        ],
        remedy="hold an asyncio.Lock over reading and writing, or change it in one step in the store",
        about=written,
        confidence=0.55,
    )


RULE = Rule(
    "PC313",
    "written-back",
    "a value that is read from a store, changed and written back across awaits",
    find,
    bad="""
        class Limit:
            def __init__(self, store, most):
                self.store, self.most = store, most

            async def count(self, key):
                history = await self.store.get(key)
                if len(history) >= self.most:
                    raise RuntimeError("too many requests")
                await self.store.set(key, [*history, 1])
    """,
    good="""
        import asyncio

        class Limit:
            def __init__(self, store, most):
                self.store, self.most = store, most
                self.lock = asyncio.Lock()

            async def count(self, key):
                async with self.lock:
                    history = await self.store.get(key)
                    if len(history) >= self.most:
                        raise RuntimeError("too many requests")
                    await self.store.set(key, [*history, 1])
    """,
    needs=("await",),
)
