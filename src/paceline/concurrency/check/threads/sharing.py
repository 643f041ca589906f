"""What two threads reach at once: evidence that functions overlap in time, from where the threads of a file begin.

Two functions overlap if different threads reach them, or one kind of thread that is started several times: a loop of
threads, the tasks of an executor, the requests of a server. A function that no thread reaches overlaps with a thread if
others may call it while the thread runs: it is public, and neither starts the threads nor tears the object down.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    around,
    awaited,
    dotted,
    enclosing,
    is_within,
    last_line,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.accesses import VIEWS, Access
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, is_caught, is_teardown
from paceline.concurrency.check.values.module import name_of_site

CALLERS = 4  # calls through which a private function is followed to those that may hold a lock
# A file without any of these starts no threads, and no library starts them for it.
THREAD_WORDS = (
    "thread",
    "Thread",
    "Lock",
    "Executor",
    "in_executor",
    "flask",
    "fastapi",
    "grpc",
    *libraries.threaded(),
)


def may_coincide(one: Access, other: Access, facts: Facts) -> bool:
    """Whether two accesses may be made to the same object at the same time in two threads."""
    if facts.runs_on_own(one.fn) and facts.runs_on_own(other.fn) and not of_class(one, facts):
        return False
    return may_overlap(one.fn, other.fn, facts)


def of_class(access: Access, facts: Facts) -> bool:
    """Whether what is accessed is one for all objects: a global, or an attribute that only the class itself assigns."""
    node, cls = access.node, access.fn.cls
    on_self = isinstance(node, ast.Attribute) and dotted(node.value) == access.fn.self_name
    if not on_self or cls is None or access.fn.decorated("classmethod"):
        return True
    values = [pair for each in cls.ancestry for pair in each.values.get(node.attr, ())]  # type: ignore[attr-defined]
    return bool(values) and all(fn.cls not in cls.ancestry or fn.decorated("classmethod") for _, fn in values)


def may_overlap(one: Function, other: Function, facts: Facts) -> bool:
    """Whether two functions may run at the same time in two threads, by what this file starts."""
    mine, theirs = facts.threads_of(one), facts.threads_of(other)
    if one.asynchronous and other.asynchronous:
        return False  # one loop runs both, one after the other between two awaits
    if mine and theirs:
        return mine != theirs or len(mine) > 1 or several(mine, facts) or (one is other and _from_outside(one, facts))
    if not mine and not theirs:
        return False
    return _open(other if mine else one, facts)


def several(threads: set[str], facts: Facts) -> bool:
    """Whether one of these threads is started more than once."""
    return any(r.several and f"{r.kind}:{r.function.qualname}" in threads for r in facts.roots)


def _from_outside(fn: Function, facts: Facts) -> bool:
    """Whether a function that a thread runs is also called by one that others may call while the thread runs."""
    callers = (caller for caller, _ in facts.callers.get(id(fn), ()) if not facts.threads_of(caller))
    return any(_open(caller, facts) for caller in callers)


def _open(fn: Function, facts: Facts) -> bool:
    """Whether a function that no thread reaches may be called while threads run."""
    if fn.cls is None or fn.generator or fn.name.startswith("_") or fn.name in BEGINNINGS or is_teardown(fn):
        return False
    return not any(short_name(call.func) in ("start", "submit") for call in fn.calls)


def may_be_alone(fn: Function, facts: Facts, depth: int = CALLERS) -> bool:
    """Whether a function may run under its caller's lock, or before or after all other threads."""
    if fn.name in BEGINNINGS or fn.name.endswith("locked") or is_teardown(fn) or not depth:
        return True
    if not fn.name.startswith("_") or fn.name.startswith("__") or facts.threads_of(fn):
        return False
    callers = facts.callers.get(id(fn), [])
    return all(event.held or may_be_alone(caller, facts, depth - 1) for caller, event in callers)


def comes_after(access: Access, other: Access, facts: Facts) -> bool:
    """Whether the threads that make another access have ended before: they were joined, or their object was closed."""
    names = _names_of(facts.threads_of(other.fn), facts)
    return _follows_end(access.node, access.fn, names, facts, CALLERS) or _is_closed(access)


def _names_of(threads: set[str], facts: Facts) -> list[set[str]]:
    """For each of these threads, what it may be joined by: the names of its own objects, or those of its executor."""
    names = []
    for root in (r for r in facts.roots if f"{r.kind}:{r.function.qualname}" in threads):
        cls = root.function.cls if root.function.name == "run" else None
        ids = set() if cls is None else {cls.name}
        for fn in facts.module.functions:
            for call in fn.calls:
                is_start = call.lineno == root.line
                pool = facts.module.resource(call.func.value, fn) if isinstance(call.func, ast.Attribute) else None
                if is_start and pool is not None and pool.kind in ("Executor", "Pool"):
                    ids.add(pool.id)
                elif is_start and facts.module.constructed_kind(call, fn) == "Thread":
                    ids.add(name_of_site(call, fn).id)
        names.append(ids)
    return names


def _follows_end(at: ast.AST, fn: Function, names: list[set[str]], facts: Facts, depth: int) -> bool:
    """Whether a function, or else all its callers, wait for the end of all these threads before a place in it."""
    line = getattr(at, "lineno", 0)
    joined = {
        m.resource.id
        for m in facts.walker.effects(fn)
        if m.kind == "wait" and not m.timeout and m.resource is not None and m.line < line
        if m.resource.kind in ("Thread", "Executor", "Pool") and _leads_to(m.node, at)
    }
    joins = (c for c in fn.calls if isinstance(c.func, ast.Attribute) and c.func.attr == "join" and c.lineno < line)
    for call in joins:
        if not has_timeout(call, "join") and _leads_to(call, at):
            joined |= {cls.name for cls in facts.module.objects.classes(call.func.value, fn)}  # type: ignore[attr-defined]
    for block in fn.withs:
        pools = (facts.module.resource(i.optional_vars or i.context_expr, fn) for i in block.items)
        joined |= {p.id for p in pools if p is not None and p.kind == "Executor" and last_line(block) < line}
    if names and all(ids & joined for ids in names):
        return True
    callers = facts.callers.get(id(fn), []) if depth and names else []
    return bool(callers) and all(
        _follows_end(event.effect.node, caller, names, facts, depth - 1) for caller, event in callers
    )


def _leads_to(node: ast.AST, at: ast.AST) -> bool:
    """Whether a step is done on every way to a place: it is no part of a branch that is not around the place too."""
    test = enclosing(node, ast.If)
    return not isinstance(test, ast.If) or is_within(at, [test])


def _is_closed(access: Access) -> bool:
    """Whether a function has ended the object, which is not its own, before it uses an attribute of it."""
    owner = dotted(access.node.value) if isinstance(access.node, ast.Attribute) else access.fn.self_name
    ends = (c for c in access.fn.calls if isinstance(c.func, ast.Attribute) and dotted(c.func.value) == owner)
    return owner != access.fn.self_name and any(
        c.lineno < access.line and short_name(c.func) in _CLOSES and _leads_to(c, access.node) for c in ends
    )


def filled_at_once(accesses: list[Access], facts: Facts) -> Iterator[tuple[Access, int]]:
    """A key that is filled where it was found missing, in a function that several threads run: where, and that line."""
    for access, line in filled_if_missing(accesses):
        if may_coincide(access, access, facts):
            yield access, line


def filled_if_missing(accesses: list[Access]) -> Iterator[tuple[Access, int]]:
    """`if key not in d: d[key] = make()` and its like without a lock: the change, and the line of the look-up."""
    yield from ((access, line) for access, line, _ in _fillings(accesses) if not access.locks)


def filled_under_late_lock(accesses: list[Access], facts: Facts) -> Iterator[tuple[Access, int]]:
    """A key that is looked up before the lock is taken under which it is filled, with what there must not be twice."""
    for access, line, value in _fillings(accesses):
        block, container = enclosing(access.node, ast.With), dotted(access.node)
        if not isinstance(block, ast.With) or line >= block.lineno or facts.guards(access.fn) & access.locks:
            continue
        inside = (n for s in block.body for n in ast.walk(s) if isinstance(n, ast.Attribute | ast.Name))
        again = any(dotted(n) == container and n.lineno < access.line for n in inside)
        single = bool(access.locks) and not again and _is_single_use(value, access.fn, facts)
        if single and may_coincide(access, access, facts):
            yield access, line


def _is_single_use(value: ast.expr, fn: Function, facts: Facts) -> bool:
    """Whether a value is an object that has to be closed, or a lock, thread or the like: a second one is no copy."""
    classes = facts.module.objects.classes(value, fn)
    if any(cls.method(name) is not None for cls in classes for name in _CLOSES):
        return True
    return any(facts.module.constructed_kind(*made) is not None for made in facts.module.objects.made(value, fn))


_CLOSES = ("close", "stop", "shutdown", "release", "terminate", "disconnect", "logout", "aclose", "__exit__", "join")


def _fillings(accesses: list[Access]) -> Iterator[tuple[Access, int, ast.expr]]:
    """`if key not in d: d[key] = make()` and its like: the change, the line of the look-up, and what is stored."""
    for access in accesses:
        subscript = parent(access.node)
        if access.kind != "grow" or not isinstance(subscript, ast.Subscript):
            continue
        statement = parent(subscript)
        stored = awaited(statement.value) if isinstance(statement, ast.Assign) else None
        made = awaited(access.fn.bound.get(stored.id)) if isinstance(stored, ast.Name) else stored
        line = _looked_up(subscript, access.fn) if isinstance(made, ast.Call) else 0
        if line and stored is not None:
            yield access, line, stored


def stored_if_missing(access: Access) -> bool:
    """Whether a key is stored under a test that found it missing: `if key not in d: d[key] = ...`."""
    test, subscript = enclosing(access.node, ast.If), parent(access.node)
    is_tested = isinstance(test, ast.If) and isinstance(subscript, ast.Subscript)
    return is_tested and asks_for(test, subscript.slice, dotted(subscript.value), ast.NotIn)  # type: ignore[union-attr, arg-type]


def claimed_at_once(accesses: list[Access], facts: Facts) -> Iterator[tuple[Access, int]]:
    """`if key in seen: return`, then `seen.add(key)`, in a function that several threads run: where, and the test."""
    for access in accesses:
        method = parent(access.node)
        call = parent(method) if isinstance(method, ast.Attribute) and method.attr in ("add", "append") else None
        if access.kind != "grow" or access.locks or not isinstance(call, ast.Call) or len(call.args) != 1:
            continue
        line = line_of_check(access, call.args[0])
        if line and may_coincide(access, access, facts):
            yield access, line


def line_of_check(access: Access, key: ast.expr) -> int:
    """The line of a test that found a key missing, where an access is decided by it; 0 if there is none."""
    container = dotted(access.node)
    for test in around(access.node, ast.If):
        if asks_for(test, key, container, ast.NotIn) and access.line <= last_line(test.body):
            return test.lineno
    for test in (t for t in access.fn.tests if isinstance(t, ast.If) and t.lineno < access.line):
        leaves = isinstance(test.body[-1], ast.Return | ast.Continue | ast.Raise)
        if leaves and asks_for(test, key, container, ast.In):
            return test.lineno if _around(access.node, test) is not None else 0
    return 0


def _looked_up(subscript: ast.Subscript, fn: Function) -> int:
    """The line at which the key of a subscript was looked up and found missing; 0 if it was not."""
    test = enclosing(subscript, ast.If)
    if isinstance(test, ast.If) and asks_for(test, subscript.slice, dotted(subscript.value), ast.NotIn):
        return test.lineno
    handler = enclosing(subscript, ast.ExceptHandler)
    if isinstance(handler, ast.ExceptHandler) and handler.type is not None and short_name(handler.type) == "KeyError":
        tried = parent(handler)
        reads = (n for n in ast.walk(tried) if isinstance(n, ast.Subscript)) if isinstance(tried, ast.Try) else ()
        if any(ast.dump(n.slice) == ast.dump(subscript.slice) for n in reads if n.lineno < handler.lineno):
            return getattr(tried, "lineno", 0)
    for branch in fn.tests:
        if branch.lineno > subscript.lineno or not isinstance(branch, ast.If):
            continue
        leaves = isinstance(branch.body[-1], ast.Return) and branch is not test
        missing = absent(branch.test) if branch is test else dotted(present(branch.test)) if leaves else ""
        for target, value in fn.assigns if missing else ():
            gets = isinstance(value, ast.Call) and short_name(value.func) == "get" and bool(value.args)
            if gets and dotted(target) == missing and dotted(value.func.value) == dotted(subscript.value):  # type: ignore[attr-defined]
                return value.lineno
        if leaves and asks_for(branch, subscript.slice, dotted(subscript.value), ast.In):
            return branch.lineno
    return 0


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


def removed_at_once(accesses: list[Access], facts: Facts) -> Iterator[tuple[Access, ast.If | ast.For, Access]]:
    """`if key in d: d[key]`, or `for key in list(d): d[key]`, where another thread may take the key away in between."""
    removals = [a for a in accesses if a.kind == "shrink" and not is_teardown(a.fn)]
    for access in accesses if removals else ():
        check = checked(access)
        if check is None:
            continue
        apart = (r for r in removals if r is not access and not r.locks & access.locks)
        other = next((r for r in apart if may_coincide(r, access, facts)), None)
        if other is None and access.kind == "shrink" and not access.locks and may_coincide(access, access, facts):
            other = access
        if other is not None:
            yield access, check, other


def checked(access: Access) -> ast.If | ast.For | None:
    """What found the key that is used here: a test of it, or a loop over a copy of the container's keys."""
    key = needed_key(access)
    if key is None or is_caught(access.node, "KeyError", "LookupError", "ValueError", "IndexError"):
        return None
    for test in around(access.node, ast.If):
        if asks_for(test, key, dotted(access.node), ast.In):
            return test
    for test in (t for t in access.fn.tests if isinstance(t, ast.If) and t.lineno < access.line):
        if isinstance(test.body[-1], ast.Return | ast.Raise | ast.Continue):
            same_block = parent(test) is _around(access.node, test)
            if same_block and asks_for(test, key, dotted(access.node), ast.NotIn):
                return test
    loops = around(access.node, ast.For)
    return next((loop for loop in loops if dotted(access.node) == copied(loop.iter) and _is_key(key, loop)), None)


def found_by(access: Access, check: ast.If | ast.For, looped: str = "", tested: str = "") -> tuple[str, str]:
    """What a check does that found a key, and how that comes to the use; more may be said of a loop and of a test."""
    if isinstance(check, ast.For):
        how = f"the keys of {access.thing} are copied at line {check.lineno}, and an item is used here{looped}"
        return "copies the keys", how
    return "finds the key", f"{access.thing} is asked for a key at line {check.lineno} and used here{tested}"


def needed_key(access: Access) -> ast.expr | None:
    """The key that must be there: of `d[key]`, `del d[key]`, `d.pop(key)` and `items.remove(key)`."""
    up = parent(access.node)
    if isinstance(up, ast.Subscript):
        return None if isinstance(up.ctx, ast.Store) or access.kind == "update" else up.slice
    call = parent(up) if isinstance(up, ast.Attribute) and up.attr in ("pop", "remove", "index") else None
    return call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords else None


def copied(node: ast.expr) -> str:
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


def _around(node: ast.AST, test: ast.AST) -> ast.AST | None:
    """The syntax node around a test, if it is also around another node."""
    around, at = parent(test), parent(node)
    while at is not None and at is not around:
        at = parent(at)
    return at


def emptied_at_once(accesses: list[Access], facts: Facts) -> Iterator[tuple[Access, ast.If | ast.While]]:
    """`while items: items.pop()` in a function that several threads run: one of them finds the last item gone."""
    for access in accesses:
        test, method = enclosing(access.node, ast.If, ast.While), parent(access.node)
        if access.kind != "shrink" or access.locks or not isinstance(method, ast.Attribute):
            continue
        call = parent(method)
        keyed = method.attr == "pop" and isinstance(call, ast.Call) and len(call.args) > 1
        if method.attr not in ("pop", "popleft", "popitem") or keyed or not isinstance(test, ast.If | ast.While):
            continue
        counted = test.test.left if isinstance(test.test, ast.Compare) else test.test
        counted = counted.args[0] if isinstance(counted, ast.Call) and short_name(counted.func) == "len" else counted
        caught = is_caught(access.node, "IndexError", "KeyError", "LookupError")
        if dotted(counted) == dotted(access.node) and not caught and may_coincide(access, access, facts):
            yield access, test


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
