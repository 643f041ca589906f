"""State of the process, and of one thread, that is taken for that of another."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, is_constant, parent
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.evidence import IMPORTS, STARTS, of_threads
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, accesses_of_globals, is_caught
from paceline.concurrency.check.threads.sharing import may_overlap

#: Functions that set such state, and what that is.
SETTERS = libraries.table("functions that set state of the process")
#: Context managers that set such state for their block, and what that is.
BLOCKS = libraries.table("context managers that set state of the process")
STREAMS = ("sys.stdout", "sys.stderr", "sys.stdin", "sys.argv")
ENVIRONMENT = "os.environ"


def process_state(facts: Facts) -> Iterator[Witness]:
    """Report functions that set state of the process and put it back, where several threads may run them."""
    for fn in facts.module.functions:
        # A main function and tests have the process to themselves.
        if fn is facts.module.top or fn.name in ("main", "setUp", "tearDown") or fn.name.startswith("test"):
            continue
        changes = _changes(fn, facts)
        for what in dict.fromkeys(changes.values()):
            places = sorted((n for n, of in changes.items() if of == what), key=lambda n: n.lineno)
            # Only changes of one variable can put each other back.
            places = [place for place in places if _variable(place) in ("", _variable(places[-1]))]
            swapped = len(places) > 1 and _puts_back(places[-1], fn)
            if swapped and _meets(fn, facts) and not facts.held_at(places[0], fn):
                yield Witness(places[0], fn, what=what, last=places[-1])
        yield from _blocks(fn, facts)
    for accesses in accesses_of_globals(facts).values():
        yield from _set_for_a_block(accesses, facts)


def _blocks(fn: Function, facts: Facts) -> Iterator[Witness]:
    """Context managers of the standard library that change such state, in functions that several threads run."""
    for block in fn.withs:
        for item in block.items:
            call = item.context_expr
            name = facts.module.canonical(call.func) if isinstance(call, ast.Call) else ""
            if name in BLOCKS and may_overlap(fn, fn, facts) and not facts.held_at(block.body[0], fn):
                yield Witness(call, fn, what=BLOCKS[name], last=block.body[-1])


def _set_for_a_block(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """A global that a context manager sets, or a stack that it pushes to, for the block that it is entered for."""
    if of_threads(None, facts, accesses[0].line) < STARTS:
        return
    changes = [a for a in accesses if a.changes and not a.locks]
    for first in changes:
        ends = {"grow": ("shrink",), "write": ("write", "none")}.get(first.kind, ())
        last = next((a for a in changes if a.kind in ends and _ends_block(first, a)), None)
        if last is not None:
            assert isinstance(first.node, ast.expr)
            assert isinstance(last.node, ast.expr)
            yield Witness(first.node, first.fn, what=first.thing, last=last.node)
            return


def _ends_block(first: Access, last: Access) -> bool:
    """Whether one change is made where a context manager is entered, and the other one where it is left."""
    if first.fn is last.fn:
        between = any(first.line < y.lineno < last.line for y in first.fn.yields)
        return between and first.fn.decorated("contextmanager") and not isinstance(parent(first.node), ast.Subscript)
    return first.fn.cls is last.fn.cls and (first.fn.name, last.fn.name) == ("__enter__", "__exit__")


def _changes(fn: Function, facts: Facts) -> dict[ast.expr, str]:
    """Where a function changes state of the process, and which."""
    changes: dict[ast.expr, str] = {}
    for call in fn.calls:
        name = facts.module.canonical(call.func)
        if name in SETTERS:
            changes[call] = SETTERS[name]
        elif name.startswith(ENVIRONMENT + ".") and name.endswith((".pop", ".update", ".clear")):
            changes[call] = "the environment"
    for target, _ in fn.assigns:
        if facts.module.canonical(target) in STREAMS:
            changes[target] = facts.module.canonical(target)
    for item in fn.subscripts:
        if not isinstance(item.ctx, ast.Load) and facts.module.canonical(item.value) == ENVIRONMENT:
            changes[item] = "the environment"
    return changes


def _variable(change: ast.expr) -> str:
    """The variable of the environment that is changed, as written; empty for a change of other state, or of several."""
    if isinstance(change, ast.Subscript):
        return ast.unparse(change.slice)
    single = isinstance(change, ast.Call) and dotted(change.func).endswith((".pop", "putenv", "unsetenv"))
    return ast.unparse(change.args[0]) if single and change.args else ""  # type: ignore[attr-defined]


def _puts_back(last: ast.expr, fn: Function) -> bool:
    """Whether the last change puts an old value back: one that the function saved, or where it removes what it set."""
    if isinstance(last, ast.Subscript) and isinstance(last.ctx, ast.Del):
        return True
    values = last.args if isinstance(last, ast.Call) else [v for t, v in fn.assigns if t is last]
    old = [name for value in values for n in ast.walk(value) if (name := dotted(n)) in fn.bound]
    saved = any(fn.bound[name].lineno < last.lineno for name in old)
    removes = isinstance(last, ast.Call) and dotted(last.func).endswith((".pop", "unsetenv"))
    return saved or removes or any(dotted(value).startswith("sys.__") or is_constant(value, None) for value in values)


def _meets(fn: Function, facts: Facts) -> bool:
    """Whether several threads may run a function, or other threads run meanwhile."""
    if may_overlap(fn, fn, facts) or facts.threads_of(fn):
        return True
    tasks = any(other.asynchronous for other in facts.module.functions)
    if fn.decorated("contextmanager") and (tasks or of_threads(fn.cls, facts, fn.line) >= IMPORTS):
        return True  # for all that enter it
    return not fn.asynchronous and of_threads(fn.cls, facts, fn.line) >= STARTS


def local_set_once(facts: Facts) -> Iterator[Witness]:
    """Report attributes of locals that are set at import or by a constructor, and read elsewhere."""
    top = facts.module.top
    for name, value in top.bound.items():
        if facts.module.canonical(value).startswith("threading.local"):
            elsewhere = [fn for fn in facts.module.functions if fn is not top and name not in fn.bound]
            yield from _of_one(name, [top], elsewhere)
    for cls in facts.module.classes.values():
        methods = [fn for fn in facts.module.functions if fn.cls is cls and fn.self_name]
        for name, values in cls.values.items():
            if any(facts.module.canonical(value).startswith("threading.local") for value, _ in values):
                first = [fn for fn in methods if fn.name in BEGINNINGS]
                yield from _of_one(f"self.{name}", first, [fn for fn in methods if fn not in first])


def _of_one(name: str, first: list[Function], others: list[Function]) -> Iterator[Witness]:
    """The first read of each attribute that only these functions set."""
    set_once = {
        t.attr: (t, fn) for fn in first for t, _ in fn.assigns if _is_of(t, name) and isinstance(t, ast.Attribute)
    }
    uses = [(node, fn) for fn in others for node in fn.attributes if node.attr in set_once and _is_of(node, name)]
    for attribute, (at, fn) in set_once.items():
        of_it = [(node, other) for node, other in uses if node.attr == attribute]
        stored = any(_stored_first(other, [n for n, o in of_it if o is other]) for _, other in of_it)
        is_tested = any(_asks(other, attribute) for _, other in of_it)
        read = next((u for u in of_it if not is_caught(u[0], "AttributeError")), None)
        if read is not None and not stored and not is_tested:
            yield Witness(at, fn, name=dotted(at), read=read[0], other=read[1], line=at.lineno)


def _stored_first(fn: Function, uses: list[ast.Attribute]) -> bool:
    """Whether a function sets the attribute, and does not read it before."""
    stores = [n.lineno for n in uses if isinstance(n.ctx, ast.Store) and n not in _augmented(fn)]
    return bool(stores) and not any(isinstance(n.ctx, ast.Load) and n.lineno < min(stores) for n in uses)


def _is_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and dotted(node.value) == name


def _augmented(fn: Function) -> list[ast.expr]:
    return [change.target for change in fn.augmented]


def _asks(fn: Function, attribute: str) -> bool:
    """Whether a function asks for the attribute by its name: `hasattr(_local, "depth")`."""
    return any(isinstance(a, ast.Constant) and a.value == attribute for call in fn.calls for a in call.args)
