"""Objects that are created, started or announced on first use, by two threads at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    dotted,
    enclosing,
    following,
    is_constant,
    last_line,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.evidence import IMPORTS, OWNS_OTHER, of_all_objects, of_threads, owns_lock
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, is_shared, is_teardown, starts_or_ends
from paceline.concurrency.check.threads.sharing import absent, may_overlap, present


def lazy_start(facts: Facts) -> Iterator[Witness]:
    """Report tests of existence, outside a lock, that guard a creation or a start."""
    for fn in facts.module.functions:
        if (fn.name in BEGINNINGS and fn.name != "__new__") or fn is facts.module.top:
            continue
        for test in fn.tests:
            if not isinstance(test, ast.If) or facts.held_at(test, fn):
                continue
            yield from _starts(test, fn, facts)
            yield from _single(test, fn, facts)
            yield from _made_at_once(test, fn, facts)
            yield from _flagged(test, fn, facts)
            yield from _own_lock(test, fn, facts)
            yield from _signalled_by_thread(test, fn, facts)
            yield from _event_as_lock(test, fn, facts)
        yield from _unless_there(fn, facts)


def _unless_there(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`try: return self.x`, and `except AttributeError: self.x = make()`, in an object that threads share."""
    if fn.cls is None or fn.asynchronous or of_threads(fn.cls, facts) < OWNS_OTHER or facts.guards(fn):
        return
    for target, value in fn.assigns:
        handler, name = enclosing(target, ast.ExceptHandler), dotted(target)
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None or not _creates(value, fn):
            continue
        tried = parent(handler)
        asks = (n for s in tried.body for n in ast.walk(s)) if isinstance(tried, ast.Try) else ()
        read = any(isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and dotted(n) == name for n in asks)
        on_self = name.startswith(f"{fn.self_name}.") and name.count(".") == 1 and "local" not in name
        if short_name(handler.type) == "AttributeError" and read and on_self and not facts.held_at(target, fn):
            condition = f"`{ast.unparse(handler.type)}` of {name}"
            yield _report_lazy_start(
                target, fn, f"{name} is created on first use by several threads", condition, name, 0.55
            )
            return


def _starts(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if not self.running: self.start()` of a thread, in a method that does something else."""
    if fn.cls is None or not fn.cls.is_a("threading.Thread", "Thread") or fn.name.startswith("__"):
        return
    if starts_or_ends(fn):
        return
    if "is_alive" in ast.unparse(test.test) or "isAlive" in ast.unparse(test.test):
        return
    for statement in test.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if (
            isinstance(call, ast.Call)
            and dotted(call.func) == f"{fn.self_name}.start"
            and fn.cls.method("start") is None
        ):
            yield _report_lazy_start(
                call,
                fn,
                "the thread is started on first use",
                f"`{ast.unparse(test.test)}`",
                f"{fn.cls.name}.start",
                0.65,
            )


def _made_at_once(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """An attribute or global that several threads create on first use."""
    name = absent(test.test)
    on_self = fn.cls is not None and name.startswith(fn.self_name + ".") and name.count(".") == 1
    if not name or fn.asynchronous or not (on_self or name in fn.globals) or is_teardown(fn):
        return
    together = may_overlap(fn, fn, facts)
    sign = of_threads(fn.cls if on_self else None, facts, fn.line)
    least = IMPORTS if on_self and of_all_objects(fn) else OWNS_OTHER
    if not together and (sign < least or facts.guards(fn) or starts_or_ends(fn)):
        return
    for statement in test.body:
        if isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == name:
            creates = _creates(statement.value, fn)
            if creates and not facts.held_at(statement, fn):
                tested = f"`{ast.unparse(test.test)}`"
                sure = 0.6 if together else 0.55
                yield _report_lazy_start(
                    statement, fn, f"{name} is created on first use by several threads", tested, name, sure
                )
                return


def _flagged(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if not self._sent: self._sent = True; send()` in an object that has a lock, without the lock."""
    name = absent(test.test)
    attribute = name.removeprefix(f"{fn.self_name}.")
    if fn.cls is None or name == attribute or fn.asynchronous or is_teardown(fn) or not owns_lock(fn.cls, facts):
        return
    if facts.guards(fn) or starts_or_ends(fn) or fn.name.endswith("locked"):
        return
    for statement in test.body:
        if isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == name:
            works = any(isinstance(n, ast.Call) for s in test.body for n in ast.walk(s) if s is not statement)
            if is_constant(statement.value, True) and works and not facts.held_at(statement, fn):
                tested = f"`{ast.unparse(test.test)}`"
                yield _report_lazy_start(
                    statement, fn, f"{name} is tested and set without the object's lock", tested, name, 0.5
                )
                return


def _signalled_by_thread(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if self.connected: return`, then a thread is started that sets the flag once it has connected."""
    flag = dotted(test.test) if isinstance(test.body[-1], ast.Return) else ""
    if fn.cls is None or not flag.startswith(f"{fn.self_name}.") or flag.count(".") != 1:
        return
    if any(dotted(t) == flag and t.lineno > test.lineno for t, _ in fn.assigns):
        return
    for root in facts.roots:
        starts = root.kind == "thread" and test.lineno < root.line <= last_line(fn.node)
        if starts and any(dotted(t) == flag and is_constant(v, True) for t, v in root.function.assigns):
            start = next((c for c in fn.calls if c.lineno == root.line), None)
            if start is not None and not facts.held_at(start, fn):
                what = f"{flag} says that the thread is there, but is set only by the thread itself"
                yield _report_lazy_start(start, fn, what, f"`not {flag}`", flag, 0.65)
                return


def _own_lock(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if not self.busy: self.busy = True; work(); self.busy = False`: a lock of its own, of a test and a change."""
    leaves = isinstance(test.body[-1], ast.Return | ast.Continue)
    operands = test.test.values if isinstance(test.test, ast.BoolOp) else [test.test]
    names = {dotted(value) for value in operands} if leaves else {absent(value) for value in operands}
    flags = [name for name in names if _BUSY.search(name) and (name in fn.globals or name.startswith("self."))]
    if not flags or fn.asynchronous or of_threads(fn.cls, facts, fn.line) < IMPORTS:
        return
    changes = [(t, v) for t, v in fn.assigns if dotted(t) == flags[0] and t.lineno > test.lineno]
    target = next((t for t, v in changes if is_constant(v, True)), None)
    freed = any(is_constant(v, False) and target is not None and t.lineno > target.lineno for t, v in changes)
    if target is not None and freed and not facts.held_at(target, fn):
        tested = f"`{ast.unparse(test.test)}`"
        yield _report_lazy_start(
            target, fn, f"{flags[0]} serves as a lock, but is tested and set apart", tested, flags[0], 0.55
        )


def _event_as_lock(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if self.busy.is_set(): return`, `self.busy.set()`, the work, and `self.busy.clear()`: an event is no lock."""
    event = resource_of(test.test, ("is_set", "isSet"), fn, facts) if isinstance(test.test, ast.Call) else None
    leaves = isinstance(test.body[-1], ast.Return | ast.Continue)
    if event is None or event.kind != "Event" or not leaves or fn.asynchronous or facts.held_at(test, fn):
        return
    changes = [
        (c, r) for c in fn.calls if c.lineno > test.lineno and (r := resource_of(c, ("set", "clear"), fn, facts))
    ]
    calls = [c for c, r in changes if r.id == event.id]
    names = [short_name(c.func) for c in calls]
    if names[:1] == ["set"] and "clear" in names[1:]:
        tested = f"`{ast.unparse(test.test)}`"
        yield _report_lazy_start(
            calls[0], fn, f"{event.id} serves as a lock, but is tested and set apart", tested, event.id, 0.55
        )


_BUSY = re.compile(r"busy|running|working|in_progress|inprogress|locked|processing|flushing|syncing|reconnecting", re.I)


def _creates(value: ast.expr, fn: Function) -> bool:
    """Whether an object is made rather than a plain value: by a class, or by a function that is named so."""
    if isinstance(value, ast.ListComp):
        return _creates(value.elt, fn)
    if isinstance(value, ast.Name) and isinstance(call := fn.bound.get(value.id), ast.Call):
        return _creates(call, fn)
    if not isinstance(value, ast.Call):
        return False
    name = short_name(value.func)
    if name == "__new__" or (name == "cls" and name == fn.self_name):
        return True
    name = name.strip("_")
    return name[:1].isupper() or name.startswith(
        ("create", "make", "build", "new", "open", "connect", "get_", "load", "local")
    )


def _single(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """A thread of an object that has a lock, started on first use without it."""
    name = absent(test.test)
    if not name or fn.cls is None or not name.startswith(fn.self_name + ".") or starts_or_ends(fn):
        return
    if not is_shared(fn.cls, facts) or (fn.name.startswith("_") and facts.guards(fn)):
        return
    has_lock = any(
        (m := facts.module.constructed(v, f)) and m[0] in ("Lock", "RLock")
        for vs in fn.cls.values.values()
        for v, f in vs
    )
    for statement in test.body:
        if isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == name and has_lock:
            construction = facts.module.constructed(statement.value, fn)
            if construction is not None and construction[0] == "Thread":
                yield _report_lazy_start(
                    statement,
                    fn,
                    f"{name} is created and started on first use, without the object's lock",
                    f"`{ast.unparse(test.test)}`",
                    name,
                    0.65,
                )


def _report_lazy_start(at: ast.AST, fn: Function, what: str, condition: str, about: str, confidence: float) -> Witness:
    line = getattr(at, "lineno", fn.line)
    return Witness(at, fn, confidence=confidence, what=what, condition=condition, line=line, about=about)


WORDS = ("init", "ready", "done", "loaded", "setup", "set_up", "attempted", "started", "checked", "created", "cached",
         "registered", "configured", "patched", "complete", "populated", "imported", "finalized")  # fmt: skip


def flag_before_work(facts: Facts) -> Iterator[Witness]:
    """Report functions that return early on a flag which they set before they do the work."""
    for fn in facts.module.functions:
        if fn.name == "__init__" or fn is facts.module.top:
            continue
        for test in fn.tests:
            if isinstance(test, ast.If):
                yield from _half_made(test, fn, facts)
            name = _flag(test, fn, facts) if isinstance(test, ast.If) else ""
            if not name or facts.held_at(test, fn):
                continue
            sign = of_threads(fn.cls if "." in name else None, facts, fn.line)
            assert isinstance(test, ast.If)
            assignments = _set_early(name, test, fn, facts)
            everywhere = name in fn.globals or name.split(".")[0] in facts.module.classes
            if assignments is not None and (sign >= IMPORTS or everywhere) and not facts.held_at(assignments[0], fn):
                (flag, later), sure = assignments, 0.6 if sign >= OWNS_OTHER else 0.5
                yield Witness(flag, fn, confidence=sure, name=name, later=later, test=test)
                break


def _half_made(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if x is None: with lock: x = make(); x.set_up()`: the check before the lock finds what is not complete yet."""
    leaves = isinstance(test.body[-1], ast.Return)
    name = absent(test.test) or (dotted(present(test.test)) if leaves else "")
    if not name or facts.held_at(test, fn) or not (name in fn.globals or _is_shared(name, fn, facts)):
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
    on_self = bool(fn.self_name) and name.startswith(f"{fn.self_name}.") and name.count(".") == 1
    return on_self or name in fn.globals or ("." in name and name.split(".")[0] in facts.module.classes)


def _set_early(name: str, test: ast.If, fn: Function, facts: Facts) -> tuple[ast.Assign, ast.Assign] | None:
    """The assignment of True to the flag, and the assignment of other state that comes after it."""
    flag = next((n for n in _assigns(fn) if dotted(n.targets[0]) == name and is_constant(n.value, True)), None)
    if flag is None or flag.lineno < test.lineno:
        return None
    for later in _assigns(fn):
        target = dotted(later.targets[0])
        on_self = bool(fn.self_name) and target.startswith(f"{fn.self_name}.")
        shared = on_self or _is_shared(target, fn, facts)
        works = any(isinstance(n, ast.Call) for n in ast.walk(later.value))
        if later.lineno > flag.lineno and shared and target != name and works:
            return flag, later
    return None


def _assigns(fn: Function) -> Iterator[ast.Assign]:
    todo: list[ast.AST] = list(fn.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.Assign):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.ExceptHandler)] + todo
