"""Collectives in an order that ranks do not share."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.ranks.branches import condition, of_rank
from paceline.concurrency.check.ranks.items import Item, flattened
from paceline.concurrency.check.ranks.origins import CHANCE, DATA, RANK
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, is_constant, is_within, parent, short_name

#: Collectives that carry nothing, so that those of any two elements match.
ALIKE = ("barrier", "monitored_barrier", "wait_for_everyone")


def unordered_collectives(facts: Facts) -> Iterator[Witness]:
    """Report collectives in loops over sets, directories and per-rank dictionaries."""
    for fn in facts.module.functions:
        if not facts.sequences.whole(fn).items:
            continue
        for loop in fn.loops:
            why = "" if isinstance(loop, ast.While) else _unordered(loop.iter, fn, facts)
            inside = _inside(loop, fn, facts) if why else []  # type: ignore[arg-type]
            collective = next((item for item in inside if item.name not in ALIKE), None)
            if collective is not None and isinstance(collective.at, ast.Call):
                yield Witness(collective.at, fn, why=why, over=loop.iter)  # type: ignore[union-attr]


def _inside(loop: ast.For | ast.AsyncFor | ast.comprehension, fn: Function, facts: Facts) -> list[Item]:
    """The collectives that a loop or comprehension calls in each turn."""
    if isinstance(loop, ast.comprehension):
        within = {id(node) for node in ast.walk(parent(loop) or loop)}
        return [item for item in facts.sequences.operations(fn) if id(item.at) in within]
    return [i for item in facts.sequences.body(loop.body, fn, None).items for i in flattened(item)]


def _unordered(over: ast.expr, fn: Function, facts: Facts) -> str:
    """Why the order of an iterable differs between ranks; empty if it does not."""
    ordered = isinstance(over, ast.Call) and short_name(over.func) == "sorted"
    while (
        isinstance(over, ast.Call)
        and short_name(over.func) in ("sorted", "list", "tuple", "enumerate", "reversed")
        and over.args
    ):
        over = over.args[0]
    if (
        not ordered
        and isinstance(over, ast.Call)
        and short_name(over.func) in ("listdir", "glob", "iglob", "iterdir", "scandir")
    ):
        return "the files of a folder, whose order differs between machines"
    if not ordered and _is_set(over, fn, facts):
        return "a set, whose order differs between processes"
    if (
        isinstance(over, ast.Call)
        and isinstance(over.func, ast.Attribute)
        and over.func.attr in ("items", "keys", "values")
    ):
        over = over.func.value
    # Sorting puts keys into one order, but leaves them other keys on ranks with other data.
    if _filled_by_each(over, fn, facts, (DATA, CHANCE) if ordered else (DATA, CHANCE, RANK)):
        return f"{ast.unparse(over)}, a dictionary that every rank fills for itself"
    values = facts.module.objects.of(over, fn) if not ordered else ()
    containers = [(v.what, v.fn) for v in values if isinstance(v.what, ast.AST) and v.fn is not None]
    if any(_filled_apart(container, scope, facts) for container, scope in containers):
        return f"{ast.unparse(over)}, which ranks fill in different orders"
    return ""


def _filled_apart(container: ast.AST, fn: Function, facts: Facts) -> bool:
    """Whether a function fills a container that it makes on one side of a test only which ranks decide differently."""
    name = next((t.id for t, v in fn.assigns if v is container and isinstance(t, ast.Name)), "")
    if not name:
        return False
    stores = [
        (s, ast.unparse(s.slice)) for s in fn.subscripts if isinstance(s.ctx, ast.Store) and dotted(s.value) == name
    ]
    added = (c for c in fn.calls if dotted(c.func) in (f"{name}.append", f"{name}.insert") and c.args)
    stores += [(c, ast.unparse(c.args[-1])) for c in added]  # type: ignore[misc]
    for test in (t for t in fn.tests if isinstance(t, ast.If)):
        sides = [{key for store, key in stores if is_within(store, side)} for side in (test.body, test.orelse)]
        if sides[0] != sides[1] and condition(test.test, fn, facts.module) is not None:
            return True
    return False


def _filled_by_each(over: ast.expr, fn: Function, facts: Facts, reasons: tuple[str, ...]) -> bool:
    """Whether this is a dictionary, made empty, that gets keys for these reasons: wherever it is filled."""
    while isinstance(over, ast.Call) and short_name(over.func) in ("sorted", "list", "tuple", "dict") and over.args:
        over = over.args[0]
    of, why, top = facts.module.objects.of, facts.module.varying.why, facts.module.top
    values = {value for value in of(over, fn) if isinstance(value.what, ast.expr) and _is_empty_dict(value.what)}
    for each in facts.module.functions if values else ():
        stored = [(s.value, s.slice) for s in each.subscripts if isinstance(s.ctx, ast.Store)]
        stored += [
            (c.func.value, c.args[0])
            for c in each.calls
            if isinstance(c.func, ast.Attribute) and c.func.attr == "setdefault" and c.args
        ]
        for key, holders in ((k, values.intersection(of(d, each))) for d, k in stored):
            runs = any(value.fn is top for value in holders) and each is not top  # filled while the program runs
            if holders and (runs or why(key, each) in reasons or _of_argument(key, each)):
                return True
    return False


def _of_argument(key: ast.expr, method: Function) -> bool:
    """Whether a key is an element of what a method was given: of one of its tensors as a list, or of a batch."""
    if not isinstance(key, ast.Name):
        return False
    for loop in method.loops:
        if isinstance(loop, ast.While) or all(n.id != key.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)):
            continue
        names = {n.id for n in ast.walk(loop.iter) if isinstance(n, ast.Name)}
        read = {n.attr for n in ast.walk(loop.iter) if isinstance(n, ast.Attribute)}
        listed = bool(read & {"tolist", "unique", "numpy"})
        return bool(names & set(method.parameters)) and (listed or bool(names & {"batch", "sample", "outputs"}))
    return False


def _is_empty_dict(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and short_name(value.func) in ("dict", "defaultdict", "OrderedDict", "Counter")


def _is_set(node: ast.expr, fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether an expression is a set, or a list of one: by its assignments, in an attribute, as an argument."""
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call):
        keeps_order = short_name(node.func) in ("list", "tuple", "enumerate", "reversed") and len(node.args) == 1
        if facts.module.callee(node, fn) is not None and depth < DEPTH:
            callee = facts.module.callee(node, fn)
            returned = [r.value for r in callee.returns if r.value is not None] if callee is not None else []
            return bool(returned) and all(_is_set(v, callee, facts, depth + 1) for v in returned)  # type: ignore[arg-type]
        return dotted(node.func) in ("set", "frozenset") or (keeps_order and _is_set(node.args[0], fn, facts, depth))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr | ast.Sub):
        return _is_set(node.left, fn, facts, depth) or _is_set(node.right, fn, facts, depth)
    values = facts.module.given(node, fn) if depth < DEPTH else []
    values = [(value, scope) for value, scope in values if not is_constant(value, None) and value is not node]
    return bool(values) and all(_is_set(value, scope, facts, depth + 1) for value, scope in values)


DEPTH = 4  # assignments through which a set is followed


def shares_overlap(facts: Facts) -> Iterator[Witness]:
    """Report shares by the rank of a sequence that the function has shuffled, or drawn, on each rank by itself."""
    for fn in facts.module.functions:
        for share in (s for s in fn.subscripts if isinstance(s.ctx, ast.Load) and isinstance(s.value, ast.Name)):
            first = share.slice.lower if isinstance(share.slice, ast.Slice) else None
            parts = [first.left, first.right] if isinstance(first, ast.BinOp) else [first] if first is not None else []
            if not any(of_rank(part, fn, facts.module) for part in parts):
                continue
            name = share.value.id  # type: ignore[attr-defined]
            drawn = next((c for c in fn.calls if c.lineno <= share.lineno and _orders(c, name, fn, facts)), None)
            if drawn is not None:
                yield Witness(share, fn, drawn=drawn)


def _orders(call: ast.Call, name: str, fn: Function, facts: Facts) -> bool:
    """Whether a call puts a sequence into an order that it draws on this rank alone, or makes such a sequence."""
    value = fn.bound.get(name)
    shuffles = short_name(call.func) == "shuffle" and any(dotted(a) == name for a in call.args)
    makes = short_name(call.func) in DRAWS and value is not None and any(n is call for n in ast.walk(value))
    return (shuffles or makes) and bool(facts.module.varying.why(call, fn))


DRAWS = ("randperm", "permutation", "permuted")


def collective_in_thread(facts: Facts) -> Iterator[Witness]:
    """Report collectives of the default group in a thread, if there are others outside it."""
    module, sequences = facts.module, facts.sequences
    if not facts.has_threads:
        return
    everywhere = [(fn, c) for call, fn in module.calls if (c := sequences.collective(call, fn)) and not c.group]
    # If threads alone call collectives, one thread of each rank may do so in order.
    outside = next(((fn, c) for fn, c in everywhere if not facts.threads_of(fn)), None)
    if outside is None:
        return
    for fn, collective in everywhere:
        if facts.threads_of(fn) and not any(other is fn for other, event in facts.callers.get(id(fn), ())):
            yield Witness(collective.call, fn, outside=outside)
            return
