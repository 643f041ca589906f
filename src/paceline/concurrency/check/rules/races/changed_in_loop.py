"""A loop over a dictionary, set or list that itself changes the size of what it iterates over."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import enclosing, following, is_within, parent
from paceline.concurrency.check.threads.accesses import VIEWS, Access, iterates
from paceline.concurrency.check.threads.shared_state import accesses_of_class, is_caught

LEAVES = (ast.Break, ast.Return, ast.Raise)


def find(facts: Facts) -> Iterator[Witness]:
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
        goes_on = enclosing(node, ast.For, ast.While) is loop and not _left_after(node, loop)
        if goes_on and not is_caught(node, "RuntimeError"):
            yield _report(loop.iter, fn, name, node.lineno)
            return


def _by_a_new_key(loop: ast.For, container: ast.Attribute | ast.Name, fn: Function) -> Iterator[Witness]:
    """`for key in self.d: self.d["found"] = True`: a key that the loop does not come from."""
    name = dotted(container)
    keys = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for stored in fn.subscripts:
        if not is_within(stored, loop.body) or not isinstance(stored.ctx, ast.Store) or dotted(stored.value) != name:
            continue
        fixed = isinstance(stored.slice, ast.Constant) and isinstance(stored.slice.value, str)
        if fixed and keys and not _left_after(stored, loop) and enclosing(stored, ast.For, ast.While) is loop:
            yield _report(loop.iter, fn, name, stored.lineno)
            return


def _removes(node: ast.Attribute | ast.Name, loop: ast.For) -> bool:
    """Whether a key is removed here, or the item of a list that the loop has come to."""
    up = parent(node)
    if isinstance(up, ast.Subscript) and isinstance(up.ctx, ast.Del):
        return not isinstance(up.slice, ast.Constant | ast.Slice)
    call = parent(up) if up is not None else None
    if not isinstance(up, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not up:
        return False
    items = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    if up.attr == "remove":
        return len(call.args) == 1 and isinstance(call.args[0], ast.Name) and call.args[0].id in items
    view = isinstance(loop.iter, ast.Call)
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
                yield _report(access.node, access.fn, access.thing, change.line)
                break


def _of_a_key(change: Access) -> bool:
    """Whether the entry of one key is removed."""
    up = parent(change.node)
    if isinstance(up, ast.Subscript):
        return not isinstance(up.slice, ast.Constant)
    return short_name(up) in ("pop", "discard") if up is not None else False


def _report(at: ast.AST, fn: Function, what: str, line: int) -> Witness:
    return Witness(at, fn, what=what, line=line, line_2=getattr(at, "lineno", 0))
