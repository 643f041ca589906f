"""Objects that are created, started or announced on first use, by two threads at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    calls_in,
    dotted,
    enclosing,
    following,
    is_constant,
    last_line,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.atomicity import absent, present
from paceline.concurrency.check.threads.evidence import IMPORTS, OWNS_OTHER, of_all_objects, of_threads, owns_lock
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, is_teardown, starts_or_ends
from paceline.concurrency.check.threads.sharing import may_overlap


class Act(NamedTuple):
    """What a test decides on, which two threads may do that both find the same."""

    at: ast.AST
    what: str
    about: str
    confidence: float
    condition: str = ""  # where it is not the test as it is written


def lazy_start(facts: Facts) -> Iterator[Witness]:
    """Report tests of existence, outside a lock, that guard a creation or a start."""
    acts = (_starts, _made_at_once, _flagged, _own_lock, _signalled_by_thread, _event_as_lock)
    for fn in facts.module.functions:
        # A constructor has the object to itself. `__new__` of a singleton has not: two threads may ask for the first
        # one.
        if (fn.name in BEGINNINGS and fn.name != "__new__") or fn is facts.module.top:
            continue
        for test in (t for t in fn.tests if isinstance(t, ast.If) and not facts.held_at(t, fn)):
            for act in (each for of_kind in acts if (each := of_kind(test, fn, facts)) is not None):
                yield _witness(act, act.condition or f"`{ast.unparse(test.test)}`", fn)
        if (creation := _unless_there(fn, facts)) is not None:
            yield _witness(creation, creation.condition, fn)


def _witness(act: Act, condition: str, fn: Function) -> Witness:
    line = getattr(act.at, "lineno", fn.line)
    sure, what, about = act.confidence, act.what, act.about
    return Witness(act.at, fn, confidence=sure, what=what, condition=condition, line=line, about=about)


def _unless_there(fn: Function, facts: Facts) -> Act | None:
    """`try: return self.x`, and `except AttributeError: self.x = make()`, in an object that threads share."""
    if fn.cls is None or fn.asynchronous or of_threads(fn.cls, facts) < OWNS_OTHER or facts.guards(fn):
        return None
    for target, value in fn.assigns:
        handler, name = enclosing(target, ast.ExceptHandler), dotted(target)
        if handler is None or handler.type is None or short_name(handler.type) != "AttributeError":
            continue
        asks = (n for s in parent(handler).body for n in ast.walk(s))  # type: ignore[union-attr]
        read = any(isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and dotted(n) == name for n in asks)
        creates = read and _on_self(name, fn) and "local" not in name and _creates(value, fn)
        if creates and not facts.held_at(target, fn):
            return Act(target, _CREATED.format(name), name, 0.55, f"`{ast.unparse(handler.type)}` of {name}")
    return None


_CREATED = "{} is created on first use by several threads"
_AS_LOCK = "{} serves as a lock, but is tested and set apart"


def _on_self(name: str, fn: Function) -> bool:
    """Whether this is an attribute of the own object."""
    return bool(fn.self_name) and name.startswith(f"{fn.self_name}.") and name.count(".") == 1


def _assigned(name: str, test: ast.If) -> list[ast.Assign]:
    """The assignments to a name in the branch of a test."""
    return [s for s in test.body if isinstance(s, ast.Assign) and dotted(s.targets[0]) == name]


def _starts(test: ast.If, fn: Function, facts: Facts) -> Act | None:
    """`if not self.running: self.start()` of a thread, in a method that does something else."""
    if fn.cls is None or not fn.cls.is_a("threading.Thread", "Thread") or fn.name.startswith("__"):
        return None
    # A method that is there to start the thread is called once by its owner, and a `start` of its own may check.
    if starts_or_ends(fn) or re.search("is_alive|isAlive", ast.unparse(test.test)) or fn.cls.method("start"):
        return None
    calls = (s.value for s in test.body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call))
    start = next((c for c in calls if dotted(c.func) == f"{fn.self_name}.start"), None)
    return Act(start, "the thread is started on first use", f"{fn.cls.name}.start", 0.65) if start else None


def _made_at_once(test: ast.If, fn: Function, facts: Facts) -> Act | None:
    """An attribute or global that several threads create on first use."""
    name = absent(test.test)
    on_self = fn.cls is not None and _on_self(name, fn)
    if not name or fn.asynchronous or not (on_self or name in fn.globals) or is_teardown(fn):
        return None
    together = may_overlap(fn, fn, facts)
    sign = of_threads(fn.cls if on_self else None, facts, fn.line)
    least = IMPORTS if on_self and of_all_objects(fn) else OWNS_OTHER
    # Where no two threads are seen in this method, the class has to give stronger signs that it is shared.
    if not together and (sign < least or facts.guards(fn) or starts_or_ends(fn)):
        return None
    bare = (s for s in _assigned(name, test) if _creates(s.value, fn) and not facts.held_at(s, fn))
    creation = next(bare, None)
    return Act(creation, _CREATED.format(name), name, 0.6 if together else 0.55) if creation else None


def _flagged(test: ast.If, fn: Function, facts: Facts) -> Act | None:
    """`if not self._sent: self._sent = True; send()` in an object that has a lock, without the lock."""
    name = absent(test.test)
    if fn.cls is None or not name.startswith(f"{fn.self_name}.") or fn.asynchronous or is_teardown(fn):
        return None
    # `_send_locked` is called with the lock held: that is what its name says.
    if not owns_lock(fn.cls, facts) or facts.guards(fn) or starts_or_ends(fn) or fn.name.endswith("locked"):
        return None
    for flag in _assigned(name, test):
        works = calls_in(n for s in test.body for n in ast.walk(s) if s is not flag)
        if is_constant(flag.value, True) and works and not facts.held_at(flag, fn):
            return Act(flag, f"{name} is tested and set without the object's lock", name, 0.5)
    return None


def _signalled_by_thread(test: ast.If, fn: Function, facts: Facts) -> Act | None:
    """`if self.connected: return`, then a thread is started that sets the flag once it has connected."""
    flag = dotted(test.test) if isinstance(test.body[-1], ast.Return) else ""
    if fn.cls is None or not _on_self(flag, fn):
        return None
    # A flag that is set here, before the start, keeps out the second caller.
    if any(dotted(t) == flag and t.lineno > test.lineno for t, _ in fn.assigns):
        return None
    for root in facts.roots:
        begun = root.kind == "thread" and test.lineno < root.line <= last_line(fn.node)
        if begun and any(dotted(t) == flag and is_constant(v, True) for t, v in root.function.assigns):
            start = next((c for c in fn.calls if c.lineno == root.line), None)
            if start is not None and not facts.held_at(start, fn):
                what = f"{flag} says that the thread is there, but is set only by the thread itself"
                return Act(start, what, flag, 0.65, f"`not {flag}`")
    return None


def _own_lock(test: ast.If, fn: Function, facts: Facts) -> Act | None:
    """`if not self.busy: self.busy = True; work(); self.busy = False`: a lock of its own, of a test and a change."""
    leaves = isinstance(test.body[-1], ast.Return | ast.Continue)
    operands = test.test.values if isinstance(test.test, ast.BoolOp) else [test.test]
    names = {dotted(value) if leaves else absent(value) for value in operands}
    flags = [name for name in names if _BUSY.search(name) and (name in fn.globals or name.startswith("self."))]
    if not flags or fn.asynchronous or of_threads(fn.cls, facts, fn.line) < IMPORTS:
        return None
    changes = [(t, v) for t, v in fn.assigns if dotted(t) == flags[0] and t.lineno > test.lineno]
    taken = next((t for t, v in changes if is_constant(v, True)), None)
    freed = taken and any(is_constant(v, False) and t.lineno > taken.lineno for t, v in changes)
    if taken is None or not freed or facts.held_at(taken, fn):
        return None
    return Act(taken, _AS_LOCK.format(flags[0]), flags[0], 0.55)


def _event_as_lock(test: ast.If, fn: Function, facts: Facts) -> Act | None:
    """`if self.busy.is_set(): return`, `self.busy.set()`, the work, and `self.busy.clear()`: an event is no lock."""
    event = resource_of(test.test, ("is_set", "isSet"), fn, facts) if isinstance(test.test, ast.Call) else None
    leaves = isinstance(test.body[-1], ast.Return | ast.Continue)
    if event is None or event.kind != "Event" or not leaves or fn.asynchronous:
        return None
    later = [(c, resource_of(c, ("set", "clear"), fn, facts)) for c in fn.calls if c.lineno > test.lineno]
    calls = [c for c, changed in later if changed is not None and changed.id == event.id]
    names = [short_name(c.func) for c in calls]
    is_lock = names[:1] == ["set"] and "clear" in names[1:]
    return Act(calls[0], _AS_LOCK.format(event.id), event.id, 0.55) if is_lock else None


_BUSY = re.compile(r"busy|running|working|in_progress|inprogress|locked|processing|flushing|syncing|reconnecting", re.I)
_MAKERS = ("create", "make", "build", "new", "open", "connect", "get_", "load", "local")


def _creates(value: ast.expr, fn: Function) -> bool:
    """Whether an object is made rather than a plain value: by a class, or by a function that is named so."""
    if isinstance(value, ast.ListComp):
        return _creates(value.elt, fn)
    if isinstance(value, ast.Name) and isinstance(call := fn.bound.get(value.id), ast.Call):
        return _creates(call, fn)
    name = short_name(value.func) if isinstance(value, ast.Call) else ""
    if name == "__new__" or (name == "cls" and name == fn.self_name):
        return True
    return name.strip("_")[:1].isupper() or name.strip("_").startswith(_MAKERS)


WORDS = libraries.words("words of attributes that say that something was done")


def flag_before_work(facts: Facts) -> Iterator[Witness]:
    """Report functions that return early on a flag which they set before they do the work."""
    for fn in facts.module.functions:
        if fn.name == "__init__" or fn is facts.module.top:
            continue
        for test in (t for t in fn.tests if isinstance(t, ast.If)):
            yield from _half_made(test, fn, facts)
            name = _flag(test, fn, facts)
            if not name or facts.held_at(test, fn):
                continue
            sign = of_threads(fn.cls if "." in name else None, facts, fn.line)
            everywhere = name in fn.globals or name.split(".")[0] in facts.module.classes
            early = _set_early(name, test, fn, facts)
            if early is not None and (sign >= IMPORTS or everywhere) and not facts.held_at(early[0], fn):
                (flag, later), sure = early, 0.6 if sign >= OWNS_OTHER else 0.5
                yield Witness(flag, fn, confidence=sure, name=name, later=later, test=test)
                break


def _half_made(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if x is None: with lock: x = make(); x.set_up()`: the check before the lock finds what is not complete yet."""
    leaves = isinstance(test.body[-1], ast.Return)
    name = absent(test.test) or (dotted(present(test.test)) if leaves else "")
    if not name or facts.held_at(test, fn) or not _is_shared(name, fn, facts):
        return
    for assignment in _assigns(fn):
        makes = isinstance(assignment.value, ast.Call | ast.Dict | ast.List | ast.Set)
        if assignment.lineno < test.lineno or dotted(assignment.targets[0]) != name or not makes:
            continue
        later = next((s for s in following(assignment) if _completes(s, name, fn, facts)), None)
        if later is not None and facts.held_at(assignment, fn):
            yield Witness(assignment, fn, "half-made", name=name, later=later, test=test)
            return


def _completes(statement: ast.stmt, name: str, fn: Function, facts: Facts) -> bool:
    """Whether a statement calls a method of an object or sets an attribute or item of it, itself or in a method."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        fills = facts.module.callee(statement.value, fn)
        if fills is not None and fills is not fn and fills.cls is not None and fills.cls is fn.cls:
            return any(_completes(s, name, fills, facts) for s in fills.body)
        return dotted(statement.value.func).startswith(f"{name}.")
    if isinstance(statement, ast.For):
        return any(_completes(s, name, fn, facts) for s in statement.body)
    target = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    return target.startswith((f"{name}.", f"{name}["))


def _flag(test: ast.If, fn: Function, facts: Facts) -> str:
    """The flag of being done that makes a function return at once, or without which it does the work."""
    missing = absent(test.test)
    name = missing or (dotted(test.test) if isinstance(test.body[0], ast.Return) else "")
    named = any(word in name.rpartition(".")[2].lower() for word in WORDS)
    return name if named and _is_shared(name, fn, facts) and (not missing or not test.orelse) else ""


def _is_shared(name: str, fn: Function, facts: Facts) -> bool:
    """Whether this is a global, an attribute of the own object, or state of a class of the file."""
    of_class = "." in name and name.split(".")[0] in facts.module.classes
    return _on_self(name, fn) or name in fn.globals or of_class


def _set_early(name: str, test: ast.If, fn: Function, facts: Facts) -> tuple[ast.Assign, ast.Assign] | None:
    """The assignment of True to the flag, and the assignment of other state that comes after it."""
    flag = next((n for n in _assigns(fn) if dotted(n.targets[0]) == name and is_constant(n.value, True)), None)
    if flag is None or flag.lineno < test.lineno:
        return None
    for later in (n for n in _assigns(fn) if n.lineno > flag.lineno and calls_in([n.value])):
        target = dotted(later.targets[0])
        on_self = bool(fn.self_name) and target.startswith(f"{fn.self_name}.")
        if target != name and (on_self or _is_shared(target, fn, facts)):
            return flag, later
    return None


def _assigns(fn: Function) -> Iterator[ast.Assign]:
    """The assignments of a function itself, in their order."""
    todo: list[ast.AST] = list(fn.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.Assign):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.ExceptHandler)] + todo
