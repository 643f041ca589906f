"""What two tasks do at once across an await: create, fill, write back, also to a store."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness, not_atomic
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    contexts_around,
    dotted,
    enclosing,
    following,
    is_constant,
    is_within,
    last_line,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.atomicity import Region, absent, is_locked, pause_in, violations
from paceline.concurrency.check.threads.shared_state import (
    BEGINNINGS,
    accesses_of_class,
    is_teardown,
    makes_empty,
    shared_things,
    starts_or_ends,
)
from paceline.concurrency.check.threads.sharing import several


def lazy_across_await(facts: Facts) -> Iterator[Witness]:
    """Report `if x is None: x = await ...` that is not under a lock."""
    for fn in facts.module.functions:
        if not fn.asynchronous or fn.name in ("__aenter__", "__aexit__"):
            continue
        for test in fn.tests:
            if isinstance(test, ast.If) and not is_locked(test, fn, facts):
                yield from _made_twice(test, fn, facts)
        yield from _ended_twice(fn, facts)
        yield from _taken_late(fn, facts)
    for accesses, _ in shared_things(facts):
        yield from _keys(accesses, facts)


def _made_twice(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """What a coroutine makes where it was found to be missing, and stores only after an await."""
    name = absent(test.test) or _present(test.test)
    shared = name in fn.globals or (bool(fn.self_name) and name.startswith(f"{fn.self_name}."))
    in_turn = starts_or_ends(fn) or fn.name.startswith("__")  # its caller calls it once
    if not name or not shared or (in_turn and not _stores_what_it_opens(test, name)):
        return
    assignment = next((s for s in test.body if isinstance(s, ast.Assign) and _stores(s, name)), None)
    inner = (s for s in _nested(test) if isinstance(s.value, ast.Await) and _stores(s, name))
    assignment = assignment or next((s for s in inner if not is_locked(s, fn, facts)), None)
    value = assignment.value if assignment is not None else None
    if assignment is not None and isinstance(value, ast.Await):
        if facts.lets_others_run(value, fn):
            sure = 0.65 if _opens(value) else 0.4
            yield Witness(assignment, fn, confidence=sure, name=name, tested=test.lineno)
    elif assignment is None:
        if (opened := _through_method(test, name, fn, facts)) is not None:
            yield Witness(opened, fn, confidence=0.6, name=name, tested=test.lineno)
    elif not is_teardown(fn) and (absent(test.test) or (isinstance(value, ast.Constant) and not value.value)):
        before = test.body[: test.body.index(assignment)]
        yield from [Witness(assignment, fn, "flag", name=name, test=test)] if _waits(before, fn) else []


def _keys(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """A key that is stored only after an await, by two tasks that both found it missing: a claim, or an object."""

    def preempts(region: Region, _: Access) -> bool:
        return not any(is_locked(at, region.use.fn, facts) for at in (region.check, region.use.node))

    reported = set()
    for region, _ in violations("missing", accesses, facts, preempts):
        use, assignment = region.use, enclosing(region.use.node, ast.Assign)
        opened = isinstance(assignment, ast.Assign) and any(_opens(v) for v in _behind(assignment.value, use.fn))
        if opened and "found" not in reported:
            reported.add("found")
            yield Witness(assignment, use.fn, name=f"an entry of {use.thing}", tested=region.line)  # type: ignore[arg-type]
        claims = isinstance(region.check, ast.If) and pause_in(region) is not None and _gives_up(region.check, use)
        if claims and use.fn.asynchronous and "claim" not in reported:
            reported.add("claim")
            yield not_atomic(region, "claim")


def _gives_up(test: ast.If, access: Access) -> bool:
    """Whether the task that comes second does nothing, rather than take what is stored: that would be a cache."""
    name, subscript = dotted(access.node), parent(access.node)
    if access.line <= last_line(test):
        reads = (s for s in access.fn.subscripts if s is not subscript and dotted(s.value) == name)
        return not test.orelse and next(reads, None) is None
    return not any(dotted(n) == name for s in test.body for n in ast.walk(s) if isinstance(n, ast.Attribute))


def _taken_late(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if seat.owner is not None: raise`, an await, and then `seat.owner = customer`, of an object that tasks share."""
    for test in fn.tests:
        if not isinstance(test, ast.If) or not isinstance(test.body[-1], ast.Raise | ast.Return) or test.orelse:
            continue
        attributes = {ast.unparse(n) for n in ast.walk(test.test) if isinstance(n, ast.Attribute | ast.Subscript)}
        rest = following(test) if not is_locked(test, fn, facts) else []
        for index, statement in enumerate(rest):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else test
            name = ast.unparse(target) if isinstance(target, ast.Attribute | ast.Subscript) else ""
            if name not in attributes or is_constant(statement.value, None):  # type: ignore[attr-defined]
                continue
            entry = isinstance(target, ast.Subscript) and several(facts.reached.get(id(fn), set()), facts)
            flag = name.startswith(f"{fn.self_name}.") and isinstance(test.test, ast.Attribute)
            shared = (flag and _called_twice(fn, facts)) or (_is_shared(name, fn) and not is_teardown(fn))
            between = any(dotted(t) == name and test.lineno < t.lineno < statement.lineno for t, _ in fn.assigns)
            if (entry or (shared and name.count(".") == 1)) and _waits(rest[:index], fn) and not between:
                yield Witness(statement, fn, "flag", name=name, test=test)
                return


def _called_twice(fn: Function, facts: Facts) -> bool:
    """Whether a coroutine is called by two others, or by one that runs as a task."""
    callers = {id(caller) for caller, _ in facts.callers.get(id(fn), ())}
    tasks = {id(root.function) for root in facts.roots if root.kind == "task"}
    return len(callers) > 1 and bool(callers & tasks)


def _is_shared(name: str, fn: Function) -> bool:
    """Whether an object comes out of a container of the own object, where other tasks find it, too."""
    binding = fn.bound.get(name.partition(".")[0])
    if isinstance(binding, ast.Call) and isinstance(binding.func, ast.Attribute) and binding.func.attr == "get":
        binding = binding.func.value
    while isinstance(binding, ast.Subscript | ast.Attribute):
        if isinstance(binding, ast.Attribute) and fn.self_name and dotted(binding.value) == fn.self_name:
            return True
        binding = binding.value
    return False


def _ended_twice(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if self.live is None: return`, `await self.live.close()`, and only then `self.live = None`."""
    for test in fn.tests:
        name = (
            absent(test.test) if isinstance(test, ast.If) and isinstance(test.body[-1], ast.Return | ast.Raise) else ""
        )
        if not name.startswith(f"{fn.self_name}.") or not fn.self_name or is_locked(test, fn, facts):
            continue
        rest = following(test)
        ends = next((s for s in rest if isinstance(s, ast.Assign) and dotted(s.targets[0]) == name), None)
        before = rest[: rest.index(ends)] if ends is not None else []
        waits = [a for a in fn.awaits if any(is_within(a, s) for s in before)]
        about = any(dotted(n) == name for a in waits for n in ast.walk(a))
        if ends is not None and about and isinstance(ends.value, ast.Constant) and not ends.value.value:
            yield Witness(ends, fn, "flag", name=name, test=test)
            return


def _through_method(test: ast.If | ast.While, name: str, fn: Function, facts: Facts) -> ast.Await | None:
    """`if not self.connected: await self.connect()`, where the method sets the flag only after an await of its own."""
    if fn.cls is None or not absent(test.test) or not isinstance(test, ast.If):
        return None
    for statement in test.body:
        awaits = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(awaits, ast.Await) or not _opens(awaits) or not isinstance(awaits.value, ast.Call):
            continue
        opens = facts.module.callee(awaits.value, fn)
        if opens is None or opens.cls is not fn.cls or opens.only_awaited is False:
            continue
        sets = [t for t, v in opens.assigns if dotted(t) == name and not is_constant(v, None)]
        first = min((a.lineno for a in opens.awaits), default=0)
        entered = (i.context_expr for w in opens.withs if isinstance(w, ast.AsyncWith) for i in w.items)
        # A method that takes a lock, or asks again itself, lets the second caller find what the first has made.
        locked = any(_is_lock(e, opens, facts) for e in entered) or any(_checks(t, name) for t in opens.tests)
        if sets and first and min(t.lineno for t in sets) >= first and not locked:
            return awaits
    return None


def _is_lock(context: ast.expr, fn: Function, facts: Facts) -> bool:
    """Whether an `async with` enters a lock, or something that may be one, rather than a request or a timeout."""
    resource = facts.module.resource(context, fn)
    return resource is not None or not isinstance(context, ast.Call)


def _checks(test: ast.If | ast.While, name: str) -> bool:
    """Whether a test asks for an attribute."""
    return any(dotted(n) == name for n in ast.walk(test.test) if isinstance(n, ast.Attribute))


def _behind(value: ast.expr | None, fn: Function) -> list[ast.expr]:
    """What a stored value is made of: itself, what its name was given, and what an object is made with."""
    values = (
        [v for t, v in fn.assigns if dotted(t) == value.id] if isinstance(value, ast.Name) else [value] if value else []
    )
    calls = [v for v in values if isinstance(v, ast.Call)]
    names = {a.id for call in calls for a in call.args if isinstance(a, ast.Name)}
    return [*values, *(v for t, v in fn.assigns if isinstance(t, ast.Name) and t.id in names)]


def _stores_what_it_opens(test: ast.If | ast.While, name: str) -> bool:
    """`if self.socket is None: self.socket = await connect()`, also in a method that is called so."""
    return bool(absent(test.test)) and any(_opens(s.value) for s in _nested(test) if _stores(s, name))


def _nested(test: ast.If | ast.While) -> list[ast.Assign]:
    """The assignments in the branch of a test, also in blocks of it."""
    return [n for s in test.body for n in ast.walk(s) if isinstance(n, ast.Assign)]


def _stores(statement: ast.Assign, name: str) -> bool:
    """Whether an assignment stores something in an attribute, alone or as a part: `_, self.protocol = ...`."""
    target = statement.targets[0]
    return name in ([dotted(n) for n in target.elts] if isinstance(target, ast.Tuple) else [dotted(target)])


def _opens(value: ast.expr | None) -> bool:
    """Whether a coroutine that is awaited makes something, rather than fetch a value, which may be fetched twice."""
    call = value.value if isinstance(value, ast.Await) else None
    if isinstance(call, ast.Call) and short_name(call.func) in ("wait_for", "shield") and call.args:
        call = call.args[0]
    return isinstance(call, ast.Call) and _OPENS.match(short_name(call.func).strip("_")) is not None


#: Functions whose result is not just a value: two of them are one too many, or the second one makes the first one void.
_OPENS = re.compile(
    r"connect|open|create|start|spawn|launch|new|subscribe|log_?in|sign_?in|auth|refresh|renew"
    r"|(get|fetch|obtain|request|acquire)_(\w+_)?(token|credentials?|session|connection|client|channel)s?$"
)


def _present(test: ast.expr) -> str:
    """The `x` of a test of `x` itself, alone or as a part of an `and`."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return next((dotted(value) for value in test.values if isinstance(value, ast.Attribute)), "")
    return dotted(test) if isinstance(test, ast.Attribute) else ""


def _waits(statements: list[ast.stmt], fn: Function) -> bool:
    """Whether the function itself awaits in one of these statements, and not only one that it defines there."""
    return any(is_within(a, s) for s in statements for a in fn.awaits)


def filled_across_await(facts: Facts) -> Iterator[Witness]:
    """Report coroutines that empty an attribute, await, and fill it, where another method reads it."""
    for cls in facts.module.classes.values():
        if not any(fn.cls is cls and fn.asynchronous for fn in facts.module.functions):
            continue
        for accesses in accesses_of_class(cls, facts).values():
            yield from _of_one(accesses)


def _of_one(accesses: list[Access]) -> Iterator[Witness]:
    for emptied in accesses:
        fn = emptied.fn
        if not fn.asynchronous or emptied.locks or is_teardown(fn) or not _empties(emptied) or _holds_lock(fn):
            continue
        filled = next((a for a in accesses if _fills(a, fn) and (a.fn is not fn or a.line > emptied.line)), None)
        last = filled.line if filled is not None and filled.fn is fn else last_line(fn.body)
        pause = next((p for p in fn.awaits if filled and emptied.line < p.lineno <= last), None)
        read = next((a for a in accesses if a.fn is not fn and not a.changes and a.fn.name not in BEGINNINGS), None)
        if filled is not None and pause is not None and read is not None:
            yield Witness(emptied.node, emptied.fn, emptied=emptied, filled=filled, pause=pause.lineno, read=read)
            return


def _holds_lock(fn: Function) -> bool:
    """Whether the coroutine holds something, most likely a lock, for a while."""
    return any("lock" in ast.unparse(i.context_expr).lower() for w in fn.withs for i in w.items)


def _empties(access: Access) -> bool:
    """Whether an empty collection is assigned, or the old one cleared."""
    up = parent(access.node)
    if isinstance(up, ast.Attribute):
        return up.attr == "clear"
    return makes_empty(up.value if isinstance(up, ast.Assign | ast.AnnAssign) else None)


def _fills(access: Access, fn: Function) -> bool:
    """Whether this adds to the collection: in the coroutine, in a function inside it, or in one that it awaits."""
    method = f"{fn.self_name}.{access.fn.name}"
    awaited = any(isinstance(a.value, ast.Call) and dotted(a.value.func) == method for a in fn.awaits)
    return access.kind == "grow" and (access.fn is fn or access.fn.outer is fn or (awaited and access.fn.asynchronous))


# Values that are read from a store and written back across awaits.

READ = re.compile(r"_*(get|load|read|retrieve|fetch)(_\w+)?$")
WRITTEN = re.compile(r"_*(set|save|write|store|put)(_\w+)?$")


def written_back(facts: Facts) -> Iterator[Witness]:
    """Report values that are read and written back across awaits, without a lock."""
    for fn in facts.module.functions:
        # Between a read and a write that are not both awaited, no other task runs.
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
