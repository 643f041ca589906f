"""Containers that change while they are iterated over."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, following, is_within, parent, short_name
from paceline.concurrency.check.threads.accesses import SHRINKS, VIEWS, Access, iterates
from paceline.concurrency.check.threads.evidence import IMPORTS, STARTS, of_threads
from paceline.concurrency.check.threads.shared_state import (
    accesses_of_class,
    accesses_of_elements,
    accesses_of_globals,
    is_caught,
    is_keyed,
    is_shared,
    is_teardown,
    own_locks,
)
from paceline.concurrency.check.threads.sharing import comes_after, may_be_alone, may_coincide

#: Functions that make a task of a coroutine.
TASKS = ("create_task", "ensure_future", "run_coroutine_threadsafe")
#: Methods that end an object, which then calls back the object that keeps it.
ENDS = libraries.words("methods that end an object, which then calls back")


def unguarded_iteration(facts: Facts) -> Iterator[Witness]:
    """Report loops over attributes and globals whose size another thread may change."""
    for cls in facts.module.classes.values():
        for accesses in (*accesses_of_class(cls, facts).values(), *accesses_of_elements(cls, facts)):
            yield from _of_one(accesses, facts, cls)
    for accesses in accesses_of_globals(facts).values():
        yield from _of_one(accesses, facts, None)
    for fn in facts.module.functions:
        yield from _of_modules(fn, facts)


def _of_modules(fn: Function, facts: Facts) -> Iterator[Witness]:
    """Loops over `sys.modules`, to which any import in another thread adds."""
    for loop in fn.loops if fn is not facts.module.top else ():
        over = loop.iter if isinstance(loop, ast.For | ast.comprehension) else None
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in VIEWS:
            over = over.func.value
        if over is None or facts.module.canonical(over) != "sys.modules" or is_caught(over, "RuntimeError"):
            continue
        if facts.threads_of(fn) or of_threads(fn.cls, facts, over.lineno) >= STARTS:
            yield Witness(over, fn, "of-modules")


def _of_one(accesses: list[Access], facts: Facts, cls: Class | None) -> Iterator[Witness]:
    loops = [
        a for a in (*accesses, *_aliased(accesses, facts)) if iterates(a) and not is_caught(a.node, "RuntimeError")
    ]
    changes = [a for a in accesses if a.kind in ("grow", "shrink") and not _replaces(a)] if loops else []
    reported: set[int] = set()
    for loop in loops:
        ends = is_teardown(loop.fn) and not _joins_elements(loop, changes, facts)
        # A loop at the end of an object, or for a log, is seldom worth a lock; what the loop itself sets off still
        # counts.
        quiet = ends or loop.fn.name in ("__repr__", "__str__")
        why = None if quiet else _meets(loop, changes, facts, cls)
        # The threads that change it were joined by then.
        if why is not None and comes_after(loop, why[0], facts):
            continue
        if why is None and quiet and (removes := _by_element(loop, changes, facts)) is not None:
            why = (removes, f"{removes.fn.qualname}, a callback of what the loop ends,", 0.55)
        if why is None and (callback := _given_away(loop, accesses)) is not None:
            why = (callback, "a callback of what the loop ends", 0.55)
        if why is None and not quiet and cls is not None and (other := _kept_for_others(loop, changes, facts, cls)):
            why = (other, f"{other.fn.qualname}, which other threads may call,", 0.5)
        if why is not None and id(loop.fn) not in reported:
            reported.add(id(loop.fn))
            change, who, sure = why
            yield Witness(loop.node, loop.fn, confidence=sure, loop=loop, who=who, change=change)


def _replaces(change: Access) -> bool:
    """Whether an assignment to a key replaces an entry that the function has read before, so that no size changes."""
    up = parent(change.node)
    if not isinstance(up, ast.Subscript) or not isinstance(up.ctx, ast.Store):
        return False
    container, key = dotted(change.node), ast.unparse(up.slice)
    return any(
        isinstance(s.ctx, ast.Load)
        and s.lineno < up.lineno
        and dotted(s.value) == container
        and ast.unparse(s.slice) == key
        for s in change.fn.subscripts
    )


def _aliased(accesses: list[Access], facts: Facts) -> Iterator[Access]:
    """Loops over a variable that was bound to the container itself under a lock, rather than to a copy."""
    for access in accesses:
        up = parent(access.node)
        target = up.targets[0] if isinstance(up, ast.Assign) and access.kind == "read" and access.locks else None
        swapped = any(a.kind == "write" and a.fn is access.fn and a.line > access.line for a in accesses)
        if isinstance(target, ast.Name) and not swapped:  # `items = self.items; self.items = []` takes it for itself
            over = (n.iter for n in access.fn.loops if isinstance(n, ast.For) and dotted(n.iter) == target.id)
            yield from (Access(access.thing, "iterate", n, access.fn, facts.held_at(n, access.fn)) for n in over)


def _meets(loop: Access, changes: list[Access], facts: Facts, cls: Class | None) -> tuple[Access, str, float] | None:
    """A change that may happen during the loop, where it happens, and the confidence; None if there is none."""
    for change in changes:
        if change.fn is loop.fn:
            continue
        if (
            any(r.kind in ("del", "gc") and r.function is change.fn for r in facts.roots)
            and change.fn.name != "__del__"
        ):
            return change, "a callback of a weak reference, which runs wherever an object dies,", 0.7
        if _in_handler(change.fn, facts) and not _in_handler(loop.fn, facts):
            return change, f"{change.fn.qualname}, a signal handler, which runs between any two steps,", 0.7
    guarded = [c for c in changes if c.locks]
    bare = [c for c in changes if not c.locks and not is_teardown(c.fn)]
    if guarded and not bare and (cls is None or is_shared(cls, facts)):
        common = frozenset(own_locks(frozenset.intersection(*(c.locks for c in guarded)), cls))
        if common and (not loop.locks & common or _returned(loop)) and not may_be_alone(loop.fn, facts):
            return guarded[0], f"{guarded[0].fn.qualname}, under {min(common)},", 0.65
    if (removes := _by_callback(loop, changes)) is not None:
        return removes, f"{removes.fn.qualname}, which a callback that the loop calls may call,", 0.5
    if (removes := _by_element(loop, changes, facts)) is not None:
        return removes, f"{removes.fn.qualname}, a callback of what the loop ends,", 0.55
    mine = facts.threads_of(loop.fn)
    for change in changes if mine else ():
        if facts.threads_of(change.fn) and not change.locks & loop.locks and may_coincide(loop, change, facts):
            where = "in a further thread of the same kind" if change.fn is loop.fn else "in another thread"
            return change, f"{change.fn.qualname}, {where},", 0.6
    for change in changes:
        theirs = facts.threads_of(change.fn)
        if (
            mine
            and not theirs
            and not change.fn.generator
            and not change.locks | loop.locks
            and _may_come_later(change, facts)
        ):
            return change, f"{change.fn.qualname}, outside of this thread,", 0.55
        if theirs and not mine and not change.locks & loop.locks:
            return change, f"{change.fn.qualname}, in another thread,", 0.6
    return None


def _in_handler(fn: Function, facts: Facts) -> bool:
    """Whether a signal handler runs a function."""
    return any(root.startswith("signal:") for root in facts.reached.get(id(fn), ()))


def _by_callback(loop: Access, changes: list[Access]) -> Access | None:
    """A method that removes from the container, where the loop calls its elements: they may call that method."""
    around = enclosing(loop.node, ast.For)
    if not isinstance(around, ast.For) or not any(n is loop.node for n in ast.walk(around.iter)):
        return None
    names = {n.id for n in ast.walk(around.target) if isinstance(n, ast.Name)}
    calls = (n for s in around.body for n in ast.walk(s) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
    called = any(c.func.id in names and not _runs_later(c) for c in calls)  # type: ignore[attr-defined]
    open_ones = (c for c in changes if c.kind == "shrink" and c.fn is not loop.fn and not c.fn.name.startswith("_"))
    return next((c for c in open_ones if not is_teardown(c.fn)), None) if called else None


def _runs_later(call: ast.Call) -> bool:
    """Whether what is called is a coroutine of which a task is made."""
    up = parent(call)
    return isinstance(up, ast.Call) and short_name(up.func) in TASKS


def _by_element(loop: Access, changes: list[Access], facts: Facts) -> Access | None:
    """A callback that removes from the container, where the loop ends its elements: the end of one calls it back."""
    around = enclosing(loop.node, ast.For)
    ends = isinstance(around, ast.For) and _ends_elements(around, loop)
    removals = (c for c in changes if c.kind == "shrink" and c.fn is not loop.fn and not c.fn.asynchronous)
    called_back = (c for c in removals if c.fn.name in facts.used_as_values)
    return next(called_back, None) if ends else None


def _joins_elements(loop: Access, changes: list[Access], facts: Facts) -> bool:
    """Whether a loop waits for threads that may still change the container: `for t in self.threads: t.join()`."""
    around = enclosing(loop.node, ast.For)
    names = {n.id for n in ast.walk(around.target) if isinstance(n, ast.Name)} if isinstance(around, ast.For) else set()
    calls = (n.func for s in getattr(around, "body", ()) for n in ast.walk(s) if isinstance(n, ast.Call))
    joins = any(isinstance(f, ast.Attribute) and f.attr == "join" and dotted(f.value) in names for f in calls)
    return joins and any(facts.threads_of(change.fn) for change in changes)


def _kept_for_others(loop: Access, changes: list[Access], facts: Facts, cls: Class) -> Access | None:
    """A method that removes entries, where a loop works on what a dictionary or set keeps, in a file with threads."""
    around = enclosing(loop.node, ast.For)
    over = around.iter if isinstance(around, ast.For) else None
    over = over.func.value if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) else over
    if over is not loop.node or not isinstance(around, ast.For) or not is_keyed(loop, facts):
        return None
    threads = any(origin.startswith(("threading", "_thread", "queue")) for origin in facts.module.imports.values())
    if loop.locks or not threads or of_threads(cls, facts) < IMPORTS or facts.runs_on_own(loop.fn):
        return None
    called = {short_name(n.func) for s in around.body for n in ast.walk(s) if isinstance(n, ast.Call)}
    if not called or called & {c.fn.name for c in changes}:
        return None
    apart = (c for c in changes if c.fn is not loop.fn and c.fn.cls is cls and c.kind == "shrink" and not c.locks)
    other = next((c for c in apart if not c.fn.name.startswith("__") and not may_be_alone(c.fn, facts)), None)
    return None if loop.fn.name.startswith("__") or may_be_alone(loop.fn, facts) else other


def _given_away(loop: Access, accesses: list[Access]) -> Access | None:
    """`self.open.pop` that is given to what ends with an element: `partial(self.open.pop, key)`."""
    around = enclosing(loop.node, ast.For)
    if not isinstance(around, ast.For) or not _ends_elements(around, loop):
        return None
    for access in accesses:
        method = parent(access.node)
        call = parent(method) if isinstance(method, ast.Attribute) and method.attr in SHRINKS else None
        is_argument = isinstance(call, ast.Call) and call.func is not method
        if is_argument and short_name(call.func) != "add_done_callback":  # type: ignore[union-attr]
            return access
    return None


def _ends_elements(around: ast.For, loop: Access) -> bool:
    """Whether a loop over a container ends its elements."""
    names = {n.id for n in ast.walk(around.target) if isinstance(n, ast.Name)}
    calls = [n.func for s in around.body for n in ast.walk(s) if isinstance(n, ast.Call)]
    ends = any(isinstance(f, ast.Attribute) and f.attr in ENDS and dotted(f.value) in names for f in calls)
    return ends and any(n is loop.node for n in ast.walk(around.iter))


def _returned(loop: Access) -> bool:
    """Whether a view is returned, so that its caller iterates after the lock was released."""
    call = parent(parent(loop.node))  # type: ignore[arg-type]
    return loop.kind == "view" and call is not None and isinstance(parent(call), ast.Return)


def _may_come_later(change: Access, facts: Facts) -> bool:
    """Whether this is a public method that does not itself start the threads, so may be called while they run."""
    name = change.fn.name
    starts = any(short_name(call.func) == "start" for call in change.fn.calls)
    return not name.startswith("_") and not starts and not is_teardown(change.fn) and change.fn is not facts.module.top


LEAVES = (ast.Break, ast.Return, ast.Raise)


def changed_in_loop(facts: Facts) -> Iterator[Witness]:
    """Report loops whose body changes the size of the container, or calls a method of the object that does."""
    for fn in facts.module.functions:
        removed = _removed_from(fn)
        for loop in fn.loops if removed else ():
            container = _iterated(loop)
            copied = container is not None and facts.module.canonical(container) == "os.environ"  # by its `__iter__`
            if isinstance(loop, ast.For) and container is not None and dotted(container) in removed and not copied:
                yield from _by_its_body(loop, dotted(container), fn)
        for loop in fn.loops:
            container = _iterated(loop)
            if isinstance(loop, ast.For) and container is not None:
                yield from _by_a_new_key(loop, container, fn)
    for cls in facts.module.classes.values():
        for accesses in accesses_of_class(cls, facts).values():
            yield from _by_a_method(accesses)


def _iterated(loop: ast.AST) -> ast.Attribute | ast.Name | None:
    """The container over which, or over a view of which, a loop iterates; None for a copy or another expression."""
    over = getattr(loop, "iter", None)
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in VIEWS:
        over = over.func.value
    return over if isinstance(over, ast.Attribute | ast.Name) else None


def _removed_from(fn: Function) -> set[str]:
    """The containers from which a function removes."""
    containers = {dotted(s.value) for s in fn.subscripts if isinstance(s.ctx, ast.Del)}
    return containers | {dotted(a.value) for a in fn.attributes if a.attr in ("pop", "discard", "remove")}


def _by_its_body(loop: ast.For, name: str, fn: Function) -> Iterator[Witness]:
    """The first statement of the body that removes an item, after which the loop continues."""
    if any(isinstance(n, ast.Assign) and dotted(n.targets[0]) == name for s in loop.body for n in ast.walk(s)):
        return  # `items = items[1:]`: what is changed from here on is another object
    for node in (n for s in loop.body for n in ast.walk(s)):
        if not isinstance(node, ast.Attribute | ast.Name) or dotted(node) != name or not _removes(node, loop):
            continue
        # A loop that is left right after the removal never asks for its next item.
        goes_on = enclosing(node, ast.For, ast.While) is loop and not _left_after(node, loop)
        if goes_on and not is_caught(node, "RuntimeError"):
            yield _report_changed_in_loop(loop.iter, fn, name, node.lineno)
            return


def _by_a_new_key(loop: ast.For, container: ast.Attribute | ast.Name, fn: Function) -> Iterator[Witness]:
    """`for key in self.d: self.d["found"] = True`: a key that the loop does not come from."""
    name = dotted(container)
    keys = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for stored in fn.subscripts:
        if not is_within(stored, loop.body) or not isinstance(stored.ctx, ast.Store) or dotted(stored.value) != name:
            continue
        # A key that the loop comes from is there already, and storing under it changes no size.
        fixed = isinstance(stored.slice, ast.Constant) and isinstance(stored.slice.value, str)
        if fixed and keys and not _left_after(stored, loop) and enclosing(stored, ast.For, ast.While) is loop:
            yield _report_changed_in_loop(loop.iter, fn, name, stored.lineno)
            return


def _removes(node: ast.Attribute | ast.Name, loop: ast.For) -> bool:
    """Whether a key is removed here, or the item of a list that the loop has come to."""
    up = parent(node)
    if isinstance(up, ast.Subscript) and isinstance(up.ctx, ast.Del):
        # `del items[0]` and `del items[:n]` are of a list, which raises nothing.
        return not isinstance(up.slice, ast.Constant | ast.Slice)
    call = parent(up) if up is not None else None
    if not isinstance(up, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not up:
        return False
    items = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    if up.attr == "remove":
        return len(call.args) == 1 and isinstance(call.args[0], ast.Name) and call.args[0].id in items
    view = isinstance(loop.iter, ast.Call)
    # `pop(key, default)`, and `pop(key)` beside a view, are of a dictionary; `pop()` of a list takes its last item.
    return up.attr == "discard" or (up.attr == "pop" and (len(call.args) == 2 or (view and len(call.args) == 1)))


def _left_after(node: ast.AST, loop: ast.For) -> bool:
    """Whether the loop is left after this, before its next turn."""
    at: ast.AST = node
    while at is not loop:
        if any(isinstance(statement, LEAVES) for statement in (at, *following(at))):
            return True
        up = parent(at)
        assert up is not None
        at = up
    return False


def _by_a_method(accesses: list[Access]) -> Iterator[Witness]:
    """A loop over a view of a dictionary that calls a method of the own object which removes from it."""
    changes = [a for a in accesses if a.kind == "shrink" and _of_a_key(a)]
    for access in accesses if changes else ():
        loop = enclosing(access.node, ast.For) if access.kind == "view" and iterates(access) else None
        if not isinstance(loop, ast.For) or _iterated(loop) is not access.node or isinstance(loop.body[-1], LEAVES):
            continue
        for statement in loop.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            name = dotted(call.func) if isinstance(call, ast.Call) else ""
            change = next((c for c in changes if name == f"{access.fn.self_name}.{c.fn.name}"), None)
            if change is not None and not is_caught(access.node, "RuntimeError"):
                yield _report_changed_in_loop(access.node, access.fn, access.thing, change.line)
                break


def _of_a_key(change: Access) -> bool:
    """Whether the entry of one key is removed."""
    up = parent(change.node)
    if isinstance(up, ast.Subscript):
        return not isinstance(up.slice, ast.Constant)
    return short_name(up) in ("pop", "discard") if up is not None else False


def _report_changed_in_loop(at: ast.AST, fn: Function, what: str, line: int) -> Witness:
    return Witness(at, fn, what=what, line=line)
