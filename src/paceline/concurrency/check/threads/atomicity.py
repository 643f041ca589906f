"""Atomicity: what a step relies on, and the step of another thread or task that undoes it before.

A *region* is a check of something shared and the use that relies on it: a key was found, and its item is read. It is
atomic unless an access by another thread can come between and undo what the check has established, with no lock common
to all three. These are the unserializable interleavings of AVIO (Lu, Tucek, Qin and Zhou, 2006), with containers told
from plain values:

| the check establishes | the use relies on it | undone by |
|---|---|---|
| found: `if key in d`, `for key in list(d)` | `d[key]`, `del d[key]`, `d.pop(key)` | a removal |
| missing: `if key not in d`, `except KeyError` | `d[key] = make()`, `d.add(key)` | the same use |
| some: `if items`, `while items` | `items.pop()` | the same use |
| present: `if x is not None`, `x = make()` | `x.use()`, `x[key]` | `x = None` |

Where another step may come between is a *preemption*: for threads anywhere between two functions that may run at the
same time, for the tasks of a loop at an await (`pause_in`). It is a condition of `violations`, since the evidence that
threads run differs from rule to rule.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    around,
    awaited,
    contexts_around,
    dotted,
    enclosing,
    is_within,
    last_line,
    lines_of,
    parent,
    short_name,
    statement_of,
)
from paceline.concurrency.check.threads.accesses import VIEWS, Access
from paceline.concurrency.check.threads.shared_state import is_caught, is_teardown
from paceline.concurrency.check.threads.sharing import is_single_use

LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
Pause = ast.Await | ast.YieldFrom | ast.AsyncFor | ast.AsyncWith


class Region(NamedTuple):
    """A check, and a use in the same function that relies on what it has established."""

    check: ast.stmt | ast.expr
    use: Access

    @property
    def line(self) -> int:
        """The line of the check."""
        return self.check.lineno

    @property
    def finds(self) -> str:
        """What a check does that finds a key, as sentences say it."""
        return "copies the keys" if isinstance(self.check, ast.For) else "finds the key"

    @property
    def found(self) -> str:
        """What was done with the key first, and then, as sentences say it."""
        if isinstance(self.check, ast.For):
            return f"the keys of {self.use.thing} are copied at line {self.line}, and an item is used here"
        return f"{self.use.thing} is asked for a key at line {self.line} and used here"

    def locks(self, facts: Facts) -> frozenset[str]:
        """The locks that are held for certain over both."""
        return self.use.locks & facts.held_at(self.check, self.use.fn)


def violations(
    established: str, accesses: list[Access], facts: Facts, preempts: Callable[[Region, Access], bool]
) -> Iterator[tuple[Region, Access]]:
    """The regions that are not atomic, each with the first access that can come between and undo the check."""
    undoing = [a for a in accesses if a.kind in UNDOING[established]]
    # What ends the object removes everything, after the others have stopped.
    undoing = [a for a in undoing if a.kind != "shrink" or not is_teardown(a.fn)]
    for region in regions(established, accesses):
        use, locks = region.use, region.locks(facts)
        others = [a for a in undoing if a is not use] + [use] * use.changes
        other = next((a for a in others if not a.locks & locks and preempts(region, a)), None)
        if other is not None:
            yield region, other


def regions(established: str, accesses: list[Access]) -> Iterator[Region]:
    """The uses that rely on a check, each with the check."""
    for use in accesses:
        check = CHECKS[established](use, accesses)
        if check is not None:
            yield Region(check, use)


def _key_found(use: Access, _: list[Access]) -> ast.If | ast.For | None:
    """What found the key that is used here: a test of it, or a loop over a copy of the container's keys."""
    key, container = _needed_key(use), dotted(use.node)
    # Where the failure is handled, the check only saves the common case the exception.
    if key is None or is_caught(use.node, "KeyError", "LookupError", "ValueError", "IndexError"):
        return None
    if (test := _test_of_key(key, use, ast.In, ast.NotIn)) is not None:
        return test
    loops = around(use.node, ast.For)
    return next((loop for loop in loops if container == _copied(loop.iter) and _is_key(key, loop)), None)


def _key_missing(use: Access, _: list[Access]) -> ast.stmt | ast.expr | None:
    """What found that the key is missing which is added here: a test, a `KeyError`, or a `get` that returned None."""
    key, container = _added_key(use), dotted(use.node)
    if key is None:
        return None
    if (test := _test_of_key(key, use, ast.NotIn, ast.In)) is not None:
        return test
    handler = enclosing(use.node, ast.ExceptHandler)
    if isinstance(handler, ast.ExceptHandler) and handler.type is not None and short_name(handler.type) == "KeyError":
        tried = parent(handler)
        reads = (n for s in getattr(tried, "body", ()) for n in ast.walk(s) if isinstance(n, ast.Subscript))
        if isinstance(tried, ast.Try) and any(ast.dump(n.slice) == ast.dump(key) for n in reads):
            return tried
    inside = enclosing(use.node, ast.If)
    for test in (t for t in use.fn.tests if isinstance(t, ast.If) and t.lineno <= use.line):
        returns = isinstance(test.body[-1], ast.Return) and test is not inside
        name = absent(test.test) if test is inside else dotted(present(test.test)) if returns else ""
        for target, value in use.fn.assigns if name else ():
            gets = isinstance(value, ast.Call) and short_name(value.func) == "get" and bool(value.args)
            if gets and dotted(target) == name and dotted(value.func.value) == container:  # type: ignore[attr-defined]
                return value
    return None


def _not_empty(use: Access, _: list[Access]) -> ast.If | ast.While | None:
    """The test that found a container not to be empty from which an item is taken here."""
    test, method = enclosing(use.node, ast.If, ast.While), parent(use.node)
    if use.kind != "shrink" or not isinstance(method, ast.Attribute) or not isinstance(test, ast.If | ast.While):
        return None
    call = parent(method)
    keyed = method.attr == "pop" and isinstance(call, ast.Call) and len(call.args) > 1
    if method.attr not in ("pop", "popleft", "popitem") or keyed:
        return None
    counted = test.test.left if isinstance(test.test, ast.Compare) else test.test
    counted = counted.args[0] if isinstance(counted, ast.Call) and short_name(counted.func) == "len" else counted
    caught = is_caught(use.node, "IndexError", "KeyError", "LookupError")
    return test if dotted(counted) == dotted(use.node) and not caught else None


def _is_present(use: Access, accesses: list[Access]) -> ast.stmt | None:
    """The last test or assignment by which something is not None where it is used."""
    used = isinstance(parent(use.node), ast.Attribute | ast.Subscript) and use.kind not in ("write", "none", "update")
    if not used or is_caught(use.node, "AttributeError", "TypeError") or _asks_too(use):
        return None
    before = [a for a in accesses if a.fn is use.fn and last_line(a.node) < use.line and _makes_present(a, use)]
    return statement_of(max(before, key=lambda a: a.line).node) if before else None


def _makes_present(access: Access, use: Access) -> bool:
    """Whether a use can only come after an assignment, or after a test that succeeded."""
    statement = statement_of(access.node)
    if access.kind == "write":
        return _leads_to(statement, use.node)
    if access.changes or not isinstance(statement, ast.If | ast.While | ast.Assert) or not _decides(access.node):
        return False
    test = statement.test
    compared = [op for c in ast.walk(test) if isinstance(c, ast.Compare) for op in c.ops]
    negative = isinstance(test, ast.UnaryOp) or any(isinstance(op, ast.Is) for op in compared)
    if isinstance(statement, ast.Assert):
        return not negative and _leads_to(statement, use.node)
    if not negative:
        return use.line in lines_of(statement.body)
    leaves = isinstance(statement.body[-1], LEAVES) and _leads_to(statement, use.node)
    return use.line in lines_of(statement.orelse) if statement.orelse else leaves and use.line > last_line(statement)


def _decides(node: ast.AST) -> bool:
    """Whether a test asks whether this is truthy or None, rather than for something of it."""
    at, up = node, parent(node)
    while isinstance(up, ast.expr):
        if isinstance(up, ast.Compare) and not isinstance(up.ops[0], ast.Is | ast.IsNot):
            return False
        if not isinstance(up, ast.Compare | ast.BoolOp | ast.UnaryOp):
            return False
        at, up = up, parent(up)
    return getattr(up, "test", None) is at


def _asks_too(use: Access) -> bool:
    """Whether a condition around the use in its own statement asks again: `x and x.use()`."""
    text, at = dotted(use.node), parent(use.node)
    while isinstance(at, ast.expr | ast.keyword):
        others = (n for n in ast.walk(at) if n is not use.node and isinstance(n, ast.Attribute | ast.Name))
        if isinstance(at, ast.BoolOp | ast.IfExp) and any(dotted(n) == text for n in others):
            return True
        at = parent(at)
    return False


#: What a check establishes -> the check that a use relies on.
CHECKS: dict[str, Callable[[Access, list[Access]], ast.stmt | ast.expr | None]] = {
    "found": _key_found,
    "missing": _key_missing,
    "some": _not_empty,
    "present": _is_present,
}
#: What a check establishes -> the accesses that undo it, besides the same use by another thread.
UNDOING = {"found": ("shrink",), "missing": (), "some": (), "present": ("none",)}


def makes_one(region: Region, facts: Facts) -> bool:
    """Whether an object is made and stored under a key; under a lock taken after the check, one that must be single."""
    subscript = parent(region.use.node)
    statement = parent(subscript) if isinstance(subscript, ast.Subscript) else None
    stored, fn = awaited(statement.value) if isinstance(statement, ast.Assign) else None, region.use.fn
    value = awaited(fn.bound.get(stored.id)) if isinstance(stored, ast.Name) else stored
    return isinstance(value, ast.Call) and (not region.use.locks or is_single_use(stored, fn, facts))  # type: ignore[arg-type]


# Preemption at an await.


def pauses(fn: Function) -> list[Pause]:
    """The points at which a coroutine lets other tasks run, in order of lines."""
    points: list[Pause] = [*fn.awaits]
    points += [w for w in fn.withs if isinstance(w, ast.AsyncWith)]
    points += [loop for loop in fn.loops if isinstance(loop, ast.AsyncFor)]
    if fn.decorated("coroutine"):
        points += [n for n in ast.walk(fn.node) if isinstance(n, ast.YieldFrom)]
    return sorted(points, key=lambda node: node.lineno)


def pause_in(region: Region) -> Pause | None:
    """The first await between a check and the use that relies on it."""
    check, use = region
    inside = is_within(use.node, check)
    for pause in pauses(use.fn):
        if isinstance(check, ast.For):
            between = is_within(pause, check.body)
        else:
            between = (check.lineno if inside else last_line(check)) < pause.lineno and end_of(pause) < use.line
        if between and on_the_way(pause, use.node):
            return pause
    return None


def end_of(pause: Pause) -> int:
    """The line at which the waiting ends."""
    return pause.lineno if isinstance(pause, ast.AsyncFor | ast.AsyncWith) else last_line(pause)


def on_the_way(pause: ast.AST, use: ast.AST) -> bool:
    """Whether the use can come after a pause: not in another branch, nor after the branch has left."""
    at: ast.AST = pause
    while (up := parent(at)) is not None and not isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
        for field in ("body", "orelse", "handlers", "finalbody"):
            block = getattr(up, field, None)
            if isinstance(block, list) and at in block and not is_within(use, block):
                if isinstance(block[-1], LEAVES):
                    return False
                if isinstance(up, ast.If) and is_within(use, up.orelse if field == "body" else up.body):
                    return False
        at = up
    return True


def is_locked(node: ast.AST, fn: Function, facts: Facts) -> bool:
    """Whether this is inside a lock, of threads or of tasks."""
    entered = list(contexts_around(node))
    if any("lock" in ast.unparse(context).lower() for context in entered):
        return True
    locks = (facts.module.resource(context, fn) for context in entered)
    if any(lock is not None and (lock.kind in ASYNC_LOCKS or not lock.sure) for lock in locks):
        return True
    return bool(facts.held_at(node, fn))


# What tests ask for.


def _test_of_key(key: ast.expr, use: Access, asks: type[ast.cmpop], denies: type[ast.cmpop]) -> ast.If | None:
    """The test of a key in whose branch a use is, or after whose branch, which leaves, it is."""
    container = dotted(use.node)
    for test in around(use.node, ast.If):
        if asks_for(test, key, container, asks) and use.line <= last_line(test.body):
            return test
    for test in (t for t in use.fn.tests if isinstance(t, ast.If) and t.lineno < use.line):
        if isinstance(test.body[-1], LEAVES) and asks_for(test, key, container, denies) and _leads_to(test, use.node):
            return test
    return None


def asks_for(test: ast.If, key: ast.expr, container: str, operator: type[ast.cmpop]) -> bool:
    """Whether a test asks for a key in a container."""
    text = ast.unparse(key)
    return any(
        isinstance(n, ast.Compare)
        and isinstance(n.ops[0], operator)
        and ast.unparse(n.left) == text
        and dotted(n.comparators[0]).removesuffix(".keys()") == container
        for n in ast.walk(test.test)
    )


def absent(test: ast.expr) -> str:
    """The `x` of `x is None`, `not x`, `(x := ...) is None`, `not hasattr(o, "x")`, `x is None or ...`; else empty."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return absent(test.values[0])
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is):
        right = test.comparators[0]
        left = test.left.target if isinstance(test.left, ast.NamedExpr) else test.left
        return dotted(left) if isinstance(right, ast.Constant) and right.value is None else ""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        operand = test.operand.target if isinstance(test.operand, ast.NamedExpr) else test.operand
        if isinstance(operand, ast.Call) and short_name(operand.func) == "hasattr" and len(operand.args) == 2:
            owner, name = operand.args
            named = isinstance(name, ast.Constant) and isinstance(name.value, str)
            return f"{dotted(owner)}.{name.value}" if named else ""  # type: ignore[attr-defined]
        return dotted(operand) if isinstance(operand, ast.Attribute | ast.Name) else ""
    return ""


def present(test: ast.expr) -> ast.expr:
    """The `x` of `x` and `x is not None`."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot):
        return test.left
    return test


def _needed_key(access: Access) -> ast.expr | None:
    """The key that must be there: of `d[key]`, `del d[key]`, `d.pop(key)` and `items.remove(key)`."""
    up = parent(access.node)
    if isinstance(up, ast.Subscript):
        return None if isinstance(up.ctx, ast.Store) or access.kind == "update" else up.slice
    call = parent(up) if isinstance(up, ast.Attribute) and up.attr in ("pop", "remove", "index") else None
    return call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords else None


def _added_key(access: Access) -> ast.expr | None:
    """The key that is there from now on: of `d[key] = ...`, `d.add(key)` and `items.append(key)`."""
    up = parent(access.node)
    if access.kind != "grow" or isinstance(up, ast.Subscript):
        return up.slice if access.kind == "grow" else None  # type: ignore[union-attr]
    call = parent(up) if isinstance(up, ast.Attribute) and up.attr in ("add", "append") else None
    return call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None


def _copied(node: ast.expr) -> str:
    """The container of which this is a copy of the keys: `list(d)`, `tuple(d.keys())`, `sorted(d)`, `d.copy()`."""
    if isinstance(node, ast.Call) and short_name(node.func) in _COPIES and len(node.args) == 1:
        inner = node.args[0]
        viewed = isinstance(inner, ast.Call) and short_name(inner.func) in VIEWS and not inner.args
        return dotted(inner.func.value if viewed else inner)  # type: ignore[attr-defined]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "copy":
        return dotted(node.func.value)
    return ""


_COPIES = {"list", "tuple", "set", "sorted", "frozenset"}


def _is_key(key: ast.expr, loop: ast.For) -> bool:
    """Whether a key is the one that a loop over keys, or over items, is at."""
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
    return isinstance(key, ast.Name) and isinstance(target, ast.Name) and key.id == target.id


def _leads_to(statement: ast.AST | None, node: ast.AST) -> bool:
    """Whether a statement is in a block around a node, so that it runs before."""
    block, at = parent(statement) if statement is not None else None, parent(node)
    while at is not None and at is not block:
        at = parent(at)
    return at is not None
