"""State that others read, and that is written only after they may."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.libraries.catalogue import THREAD_EVENTS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import following, parent
from paceline.concurrency.check.threads.evidence import OWNS_OTHER, of_threads
from paceline.concurrency.check.threads.roots import STARTS
from paceline.concurrency.check.threads.shared_state import BEGINNINGS

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
    passes_self = any(
        isinstance(a, ast.Name) and a.id == fn.self_name for a in (*call.args, *(k.value for k in call.keywords))
    )
    name = short_name(call.func).lower()
    if isinstance(call.func, ast.Attribute) and any(
        isinstance(value, ast.Call) and dotted(target) == dotted(call.func.value) for target, value in fn.assigns
    ):
        return False  # it was made here, and is not started yet
    return passes_self and any(word in name or word in dotted(call.func).lower() for word in OUTSIDE)


def _run_by(node: ast.expr, fn: Function, cls: Class, facts: Facts) -> Function | None:
    """The method of this object that a thread runs which is started: `self`, or a thread made with a method of it."""
    if dotted(node) == fn.self_name and cls.is_a("threading.Thread"):
        return cls.method("run")
    text = dotted(node)
    call = next((v for t, v in fn.assigns if dotted(t) == text and isinstance(v, ast.Call)), node)
    if not isinstance(call, ast.Call) or short_name(call.func) not in STARTS:
        return None
    word, position = STARTS[short_name(call.func)][1:]
    arguments = [k.value for k in call.keywords if k.arg == word] + call.args[position : position + 1]
    target = _method(arguments[0], fn, facts) if arguments else None
    return target if target is not None and target.cls is cls else None


def _method(node: ast.expr, fn: Function, facts: Facts) -> Function | None:
    return facts.module.function_named(node.func if isinstance(node, ast.Call) else node, fn)


def _published_early_late(fn: Function, cls: Class, start: Start, facts: Facts) -> Iterator[Witness]:
    """The attributes that are set only after the start, though they could be before, and that the thread reads."""
    reads = _reads(start.runs, cls, facts) if start.runs is not None else _read_by_any(cls, facts)
    early = {t.attr for t in _targets(fn) if t.lineno <= start.call.lineno}
    early |= {name.id for name in _class_level(cls) if isinstance(name, ast.Name)}
    late = [t for t in _targets(fn) if t.lineno > start.call.lineno and t.attr not in early and t.attr in reads]
    free = [t for t in late if not _follows(t, fn)]
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


def _class_level(cls: Class) -> list[ast.expr]:
    return [t for node in cls.node.body if isinstance(node, ast.Assign) for t in node.targets]


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
