"""State that others read and that is written, or looked up and that is stored, only after they may."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries.catalogue import PUTS, THREAD_EVENTS
from paceline.concurrency.check.rules.rule import Witness, queue_of
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import (
    arguments_of,
    awaited,
    dotted,
    enclosing,
    following,
    keyword,
    method_of,
    on_different_branches,
    parent,
    reads,
    receiver_of,
    short_name,
)
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.evidence import IMPORTS, OWNS_OTHER, of_threads
from paceline.concurrency.check.threads.evidence import STARTS as STARTED_THREADS
from paceline.concurrency.check.threads.roots import STARTS
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, accesses_of_class, is_caught

RUNS = ("start_new_thread", "submit", "run_in_executor", "call_soon_threadsafe")  # a task begins only after an await
#: What calls back into an object that it is given may be called like this.
OUTSIDE = ("server", "listen", "register", "connect", "subscribe", "transport", "daemon", "client_factory")
BASES = 4  # classes through which the start of a thread is followed
CONSTRUCTORS = ("__init__", "__post_init__")


class Start(NamedTuple):
    """A call after which another thread may use the object."""

    call: ast.Call
    runs: Function | None  # what it runs, where that is known
    confidence: float


def published_early(facts: Facts) -> Iterator[Witness]:
    """Report attributes that a constructor sets after it has started a thread that reads them."""
    for cls in facts.module.classes.values():
        for name in CONSTRUCTORS:
            fn = cls.methods.get(name)
            start = _start(fn, cls, facts) if fn is not None else None
            if fn is not None and start is not None:
                yield from _published_early_late(fn, cls, start, facts)


def _start(fn: Function, cls: Class, facts: Facts, depth: int = 0) -> Start | None:
    """The first call of a constructor that lets another thread at the object."""
    for call in sorted(fn.calls, key=lambda c: (c.lineno, c.col_offset)):
        if facts.module.canonical(call.func).startswith("super") or short_name(call.func) in CONSTRUCTORS:
            base = facts.module.function_named(call.func, fn) if depth < BASES else None
            above = base.cls if base is not None and base.cls in cls.ancestry[1:] else None
            begun = _start(base, above, facts, depth + 1) if base is not None and above is not None else None
            runs = cls.method(begun.runs.name) if begun is not None and begun.runs is not None else None
            if begun is not None and runs is not None and short_name(begun.call.func) == "start":
                return Start(call, runs, begun.confidence)
            continue
        name = short_name(call.func)
        if name == "start" and isinstance(call.func, ast.Attribute):
            runs = _run_by(call.func.value, fn, cls, facts)
            if runs is not None:
                return Start(call, runs, 0.75)
        elif name in RUNS:
            target = next((f for a in call.args if (f := _method(a, fn, facts)) is not None), None)
            if target is not None and target.cls is cls:
                return Start(call, target, 0.65)
        elif _hands_on(call, fn) and of_threads(cls, facts) >= OWNS_OTHER:
            return Start(call, None, 0.5)
    return None


def _hands_on(call: ast.Call, fn: Function) -> bool:
    """Whether the object itself is passed to a call that makes or sets up a server, a connection or the like."""
    passes_self = any(isinstance(a, ast.Name) and a.id == fn.self_name for a in arguments_of(call))
    owner, name = receiver_of(call), f"{short_name(call.func)} {dotted(call.func)}".lower()
    if owner is not None and any(isinstance(v, ast.Call) and dotted(t) == dotted(owner) for t, v in fn.assigns):
        return False  # it was made here, and is not started yet
    return passes_self and any(word in name for word in OUTSIDE)


def _run_by(node: ast.expr, fn: Function, cls: Class, facts: Facts) -> Function | None:
    """The method of this object that a thread runs which is started: `self`, or a thread made with a method of it."""
    text = dotted(node)
    if text == fn.self_name and cls.is_a("threading.Thread"):
        return cls.method("run")
    call = next((v for t, v in fn.assigns if dotted(t) == text and isinstance(v, ast.Call)), node)
    if not isinstance(call, ast.Call) or short_name(call.func) not in STARTS:
        return None
    argument = keyword(call, *STARTS[short_name(call.func)][1:])
    target = _method(argument, fn, facts) if argument is not None else None
    return target if target is not None and target.cls is cls else None


def _method(node: ast.expr, fn: Function, facts: Facts) -> Function | None:
    return facts.module.function_named(node.func if isinstance(node, ast.Call) else node, fn)


def _published_early_late(fn: Function, cls: Class, start: Start, facts: Facts) -> Iterator[Witness]:
    """The attributes that are set only after the start, though they could be before, and that the thread reads."""
    reads = _reads(start.runs, cls, facts) if start.runs is not None else _read_by_any(cls, facts)
    # An attribute that the class or an earlier line has set is there, if not with its last value.
    class_level = (t for node in cls.node.body if isinstance(node, ast.Assign) for t in node.targets)
    early = {t.attr for t in _targets(fn) if t.lineno <= start.call.lineno} | {short_name(t) for t in class_level}
    late = [t for t in _targets(fn) if t.lineno > start.call.lineno and t.attr not in early and t.attr in reads]
    free = [t for t in late if not _follows(t, fn)]
    # Reported are at most a lock and a plain value, which are the easiest to move up; else the first of what is late.
    locks = [t for t in free if facts.module.attribute(cls, t.attr) is not None]
    plain_targets = [t for t in free if isinstance(_value(t, fn), ast.Name | ast.Constant)]
    for target in [*locks[:1], *plain_targets[:1]] or late[:1]:
        yield Witness(target, fn, confidence=start.confidence, cls=cls, start=start, read=reads[target.attr])


def _value(target: ast.Attribute, fn: Function) -> ast.expr | None:
    return next((value for t, value in fn.assigns if t is target), None)


def _follows(target: ast.Attribute, fn: Function) -> bool:
    """Whether the value is taken from the object itself, and may need what the start has made."""
    value = _value(target, fn)
    return value is not None and any(dotted(n).startswith(f"{fn.self_name}.") for n in ast.walk(value))


def _targets(fn: Function) -> list[ast.Attribute]:
    """The attributes of the object that a constructor sets, in order."""
    targets = [t for t, _ in fn.assigns if isinstance(t, ast.Attribute) and dotted(t.value) == fn.self_name]
    return sorted(targets, key=lambda t: t.lineno)


def _reads(fn: Function, cls: Class, facts: Facts) -> dict[str, tuple[Function, int]]:
    """Attribute -> where the function, or a method that it calls, first reads it."""
    reads: dict[str, tuple[Function, int]] = {}
    todo, visited = [fn], {id(fn)}
    while todo:
        at = todo.pop(0)
        for node in at.attributes if at.name not in CONSTRUCTORS else ():
            if isinstance(node.ctx, ast.Load) and dotted(node.value) == at.self_name and at.cls in cls.ancestry:
                up = parent(node)
                if not (isinstance(up, ast.Call) and up.func is node and cls.method(node.attr)):
                    reads.setdefault(node.attr, (at, node.lineno))
        for effect in facts.runs(at):
            if effect.callee is not None and id(effect.callee) not in visited and effect.callee.cls in cls.ancestry:
                visited.add(id(effect.callee))
                todo.append(effect.callee)
    return reads


def _read_by_any(cls: Class, facts: Facts) -> dict[str, tuple[Function, int]]:
    """Attribute -> where a public method reads it."""
    reads: dict[str, tuple[Function, int]] = {}
    for method in cls.methods.values():
        if not method.name.startswith("_"):
            for name, where in _reads(method, cls, facts).items():
                reads.setdefault(name, where)
    return reads


def announced_early(facts: Facts) -> Iterator[Witness]:
    """Report attributes that are assigned after an event is set, and read by what waits for the event."""
    for sets in (use for use in facts.uses(("set",), THREAD_EVENTS) if not use.resource.one_of_several):
        late = (pair for wait in facts.uses(("wait",), THREAD_EVENTS, sets.of) for pair in _assigned_late(sets, wait))
        target, read = next(late, (None, None))
        if target is not None and read is not None and not facts.held_at(sets.call, sets.fn):
            yield Witness(target, sets.fn, event=sets.of, call=sets.call, waiter=read[0], read=read[1])


def _assigned_late(sets: Use, wait: Use) -> Iterator[tuple[ast.expr, tuple[Function, ast.Attribute]]]:
    """The attributes that are assigned only after the event is set, and where the waiter reads them."""
    fn, statement = sets.fn, parent(sets.call)
    begun = any(short_name(c.func) == "start" and c.lineno < sets.line for c in fn.calls)
    if fn is wait.fn or fn.cls is None or fn.cls is not wait.fn.cls or (fn.name in BEGINNINGS and not begun):
        return  # or no thread waits for it yet
    after = following(statement) if isinstance(statement, ast.Expr) else []
    targets = [t for s in after if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Attribute)]
    early = {dotted(t) for t, _ in fn.assigns if t.lineno < sets.line}
    for target in (t for t in targets if dotted(t.value) == fn.self_name and dotted(t) not in early):
        for read in wait.fn.attributes:
            on_self = dotted(read.value) == wait.fn.self_name and isinstance(read.ctx, ast.Load)
            if on_self and read.attr == target.attr and read.lineno > wait.line:
                yield target, (wait.fn, read)


# Entries that are stored only after what looks them up was sent or started.

SENDS = libraries.words("methods that send or start")
MESSAGES = ("send", "sendall", "sendto", "send_message", "send_request", "publish", "execute_command", "transmit")
TAKES = ("pop", "remove", "discard", "get")
ONES = ("start", "spawn", "worker", "put", "write", "post", "emit")


def registered_late(facts: Facts) -> Iterator[Witness]:
    """Report entries, stored under what a sending call returned, that another method takes out, and flags."""
    for cls in facts.module.classes.values():
        yield from _flag_set_late(cls, facts)
        for accesses in accesses_of_class(cls, facts).values():
            yield from _stored_late(accesses, cls, facts)


def _stored_late(accesses: list[Access], cls: Class, facts: Facts) -> Iterator[Witness]:
    takes, sign = [a for a in accesses if _takes(a)], of_threads(cls, facts)
    yield from _queued_first(accesses, facts)
    for store in (a for a in accesses if a.kind == "grow" and takes):
        other = next((t for t in takes if t.fn is not store.fn), None)
        sent = _sent_before(store, facts) if other is not None else None
        if other is None or sent is None or _in_order(store, sent, other, facts):
            continue
        pauses = any(sent.lineno <= pause.lineno <= store.line for pause in store.fn.awaits)
        if store.fn.asynchronous and sign < STARTED_THREADS and not pauses:
            continue  # a task that was created runs only once this one awaits
        if sign >= IMPORTS or any(fn.asynchronous for fn in cls.methods.values()):
            yield Witness(store.node, store.fn, store=store, sent=sent, other=other)
            return


def _flag_set_late(cls: Class, facts: Facts) -> Iterator[Witness]:
    """A flag without which a thread of the class ends, and which is set only after the thread was started."""
    for run in {id(r.function): r.function for r in facts.roots if r.kind == "thread"}.values():
        needed = {dotted(flag): flag for test in run.tests if (flag := _needed(test)) is not None}
        for fn in cls.methods.values() if run.cls is cls else ():
            starts = [c for c in fn.calls if method_of(c) == "start" and not c.args]
            flags = [(t, dotted(t), isinstance(v, ast.Constant) and v.value) for t, v in fn.assigns]
            for target, name, is_true in flags:
                started = next((c for c in starts if c.lineno < target.lineno and _in_one_block(c, target)), None)
                first = min(t.lineno for t, other, _ in flags if other == name)
                unset = (v for v, _ in cls.values.get(name.partition(".")[2], ()))
                # A flag that was set before the start, too, is true by the time that the thread asks for it.
                if started is None or name not in needed or not is_true or first <= started.lineno:
                    continue
                # The thread ends at once only where the flag begins as false.
                if any(isinstance(v, ast.Constant) and not v.value for v in unset):
                    yield Witness(target, fn, "flag", started=started, run=run, flag=needed[name])


def _needed(test: ast.If | ast.While) -> ast.expr | None:
    """What has to be true for a thread to continue: `while self.running`, `if not self.running: return`."""
    condition = test.test
    if isinstance(test, ast.If):
        ends = not test.orelse and isinstance(test.body[-1], ast.Return | ast.Break)
        negated = isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not)
        flag = condition.operand if ends and negated else None  # type: ignore[attr-defined]
    else:
        both = isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And)
        flag = condition.values[0] if both else condition  # type: ignore[attr-defined]
    return flag if isinstance(flag, ast.Attribute) else None


def _in_one_block(call: ast.Call, target: ast.AST) -> bool:
    """Whether a call and an assignment are statements of one block, so that one comes after the other."""
    statement, assigned = enclosing(call, ast.stmt), parent(target)
    return statement is not None and assigned is not None and parent(statement) is parent(assigned)


def _queued_first(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """An entry under a key with which a thread has been started, or which was put into its queue, before."""
    lookups = [a for a in accesses if (_takes(a) or a.kind == "item") and facts.threads_of(a.fn)]
    for store in accesses if lookups else ():
        other = next((a for a in lookups if a.fn is not store.fn and not is_caught(a.node, "KeyError")), None)
        key = _key(store) if store.kind == "grow" else None
        call = None if key is None or other is None else _given_before(key, store, facts)
        if other is not None and call is not None and not _in_order(store, call, other, facts):
            yield Witness(store.node, store.fn, store=store, sent=call, other=other)
            return


def _given_before(key: str, store: Access, facts: Facts) -> ast.Call | None:
    """The call that starts a thread with a key, or gives the key to one."""
    fn = store.fn
    for call in fn.calls:
        name, constructor = short_name(call.func), call
        if name == "start" and isinstance(call.func, ast.Attribute):
            owner = call.func.value
            value = fn.bound.get(owner.id) if isinstance(owner, ast.Name) else owner
            constructor = value if isinstance(value, ast.Call) else call
        elif name not in ("submit", "start_new_thread", "apply_async") and not queue_of(call, PUTS, fn, facts):
            continue
        if call.lineno < store.line and any(reads(a, key) for a in arguments_of(constructor)):
            return call if _leads(call, store) else None
    return None


def _leads(call: ast.Call, store: Access) -> bool:
    """Whether the entry is stored on the way on that the call was made, and not on another one."""
    branch, around = enclosing(call, ast.If), enclosing(store.node, ast.If)
    return branch is None or branch is around or not isinstance(branch.body[-1], ast.Return)


def _key(store: Access) -> str:
    """The name of the key of an entry, or of the stored element."""
    up = parent(store.node)
    key = up.slice if isinstance(up, ast.Subscript) else None
    if isinstance(up, ast.Attribute) and isinstance(call := parent(up), ast.Call) and call.args:
        key = call.args[0]
    return key.id if isinstance(key, ast.Name) else ""


def _takes(access: Access) -> bool:
    """Whether an entry is looked up and taken out."""
    up = parent(access.node)
    return access.kind == "shrink" or (isinstance(up, ast.Attribute) and up.attr in TAKES)


def _sent_before(store: Access, facts: Facts) -> ast.Call | None:
    """The call whose result is the key, or the stored element, and which sends or starts something."""
    up = parent(store.node)
    keys: list[ast.expr] = []
    if isinstance(up, ast.Subscript):
        keys = [up.slice]
    elif isinstance(up, ast.Attribute) and isinstance(call := parent(up), ast.Call):
        keys = call.args[:1]
    for key in keys:
        if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name):
            return _sent_in_bulk(key.value.id, store)
        if not isinstance(key, ast.Name):
            continue
        value = awaited(store.fn.bound.get(key.id))
        if isinstance(value, ast.Call) and value.lineno < store.line and _sends(value, store.fn, facts):
            return value
        for call in store.fn.calls:
            if call.lineno < store.line and (dotted(call.func) == f"{key.id}.start" or _sends_known(call, key, store)):
                return call
    return None


def _sent_in_bulk(name: str, store: Access) -> ast.Call | None:
    """The call that sends all elements of a list, where a loop over it then stores them: `d[task.uid] = task`."""
    many = store.fn.looped.get(name)
    for call in store.fn.calls if isinstance(many, ast.Name) else ():
        arguments = [store.fn.bound.get(a.id, a) if isinstance(a, ast.Name) else a for a in call.args]
        sent = any(reads(a, many.id) for a in arguments)  # type: ignore[union-attr]
        if sent and short_name(call.func) in (*MESSAGES, "submit", "put") and call.lineno < store.line:
            return call if _leads(call, store) else None
    return None


def _sends_known(call: ast.Call, key: ast.Name, store: Access) -> bool:
    """Whether a call on every way to the entry sends a message, when the key of the entry was already known."""
    fn = store.fn
    if short_name(call.func) not in MESSAGES or any(n.id == key.id and n.lineno >= call.lineno for n in fn.stores):
        return False
    used = key.id in fn.parameters or any(n.id == key.id and n.lineno <= call.lineno for n in fn.names)
    return used and _leads(call, store)


def _sends(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call sends a message or starts a thread, by its name and by what it calls."""
    name = short_name(call.func).lower().strip("_")
    if name in ONES or any(name.startswith(word) for word in SENDS if word not in ONES):
        return short_name(call.func)[:1].islower() or short_name(call.func).startswith("_")
    callee = facts.module.callee(call, fn)
    return callee is not None and any(
        short_name(c.func).lower().strip("_") in ("send", "sendall", "send_message", "sendto") for c in callee.calls
    )


def _in_order(store: Access, sent: ast.Call, other: Access, facts: Facts) -> bool:
    """Whether the entry is taken out under a lock that is held over the call and the entry, or no way does both."""
    together = facts.held_at(sent, store.fn) & store.locks & other.locks
    return bool(together) or on_different_branches(sent, store.node)
