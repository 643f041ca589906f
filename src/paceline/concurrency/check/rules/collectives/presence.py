"""Values that a rank may not have where all ranks need them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries.catalogue import WRAPPERS
from paceline.concurrency.check.ranks.origins import DATA, SPREADS
from paceline.concurrency.check.ranks.sequences import SKIPS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import (
    around,
    dotted,
    enclosing,
    is_constant,
    is_within,
    keyword,
    last_line,
    reads,
    short_name,
)

#: Collectives of a value that each rank has of its own -> its position.
GATHERS = libraries.table("collectives that gather, and where they are given the value")
#: Those of them that take any object, so that ranks may give what they have.
OBJECTS = {"all_gather_object", "gather_object", "allgather", "gather"}


def gathered_if_present(facts: Facts) -> Iterator[Witness]:
    """Report gathering collectives under a test of what they gather, without another one on the other side."""
    for fn in facts.module.functions:
        reported: set[ast.If] = set()
        for call in fn.calls:
            collective = facts.sequences.collective(call, fn) if short_name(call.func) in GATHERS else None
            name = _given(call) if collective is not None else ""
            test = _test_of(name, call, fn) if name else None
            if test is not None and not _also_otherwise(test, call, fn, facts):
                yield _report(fn, call, test, name, "only the ranks call it")
                continue
            name, left = (_left_before(call, fn, facts) if collective is not None else None) or ("", None)
            if left is not None and left not in reported:
                reported.add(left)
                is_difference = any(difference.test is left for difference in facts.sequences.differences(fn))
                # PC502 reports what a test of the rank or of data makes different.
                if not is_difference and not _also_otherwise(left, call, fn, facts):
                    yield _report(fn, call, left, name, "a rank returns before it")


def _given(call: ast.Call) -> str:
    """The name of what a call gathers."""
    place = min(GATHERS[short_name(call.func)], len(call.args) - 1)  # `accelerator.gather(x)`, `fabric.all_gather(x)`
    value = call.args[place] if len(call.args) == 1 or place == GATHERS[short_name(call.func)] else None
    named = isinstance(value, ast.Name | ast.Attribute) and not short_name(value).endswith(("group", "comm", "mesh"))
    return dotted(value) if named and value is not None else ""


def _test_of(name: str, call: ast.Call, fn: Function) -> ast.If | ast.IfExp | None:
    """The condition around the call that asks whether the value is there, or has elements."""
    tests: Iterator[ast.If | ast.IfExp] = around(call, ast.If, ast.IfExp)
    return next((t for t in tests if _asks(t.test, name) and not _replaced(name, t, call, fn)), None)


def _left_before(call: ast.Call, fn: Function, facts: Facts) -> tuple[str, ast.If] | None:
    """What is gathered, or computed from, and the test that leaves the function where this rank has none of it."""
    arguments = [*call.args, *(k.value for k in call.keywords)]
    direct = {dotted(a) for a in arguments} if short_name(call.func) in OBJECTS else set()
    for test in fn.tests:
        if not isinstance(test, ast.If) or test.orelse or test.lineno > call.lineno:
            continue
        if not isinstance(test.body[-1], ast.Return) or enclosing(test, ast.If, ast.For, ast.While) is not None:
            continue
        container = _empty(test.test)
        name = dotted(container) if container is not None else ""
        if container is None or not name or _replaced(name, test, call, fn):
            continue
        differs = name in _sources(arguments, fn) and facts.sequences.lengths.why(container, fn)
        if differs or name in direct:
            return name, test
    return None


def _sources(values: list[ast.expr], fn: Function) -> set[str]:
    """The names from which values are computed, through assignments of the function."""
    names, todo = set[str](), list(values)
    while todo:
        for node in ast.walk(todo.pop()):
            name = dotted(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            if name and "(" not in name and name not in names:
                names.add(name)
                todo += [value for target, value in fn.assigns if dotted(target) == name]
    return names


def _empty(test: ast.expr) -> ast.expr | None:
    """What a test finds empty: `not x`, `len(x) == 0`, `x.numel() == 0`; None when it asks something else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        counted = test.operand
        if isinstance(counted, ast.Call) and short_name(counted.func) == "len" and counted.args:
            counted = counted.args[0]
        return counted if isinstance(counted, ast.Name | ast.Attribute) else None
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Call):
        return None
    none = isinstance(test.ops[0], ast.Eq) and is_constant(test.comparators[0], 0)
    if none and short_name(test.left.func) == "len" and test.left.args:
        return test.left.args[0]
    of = test.left.func
    return of.value if none and isinstance(of, ast.Attribute) and of.attr in ("numel", "size") else None


def _asks(test: ast.expr, name: str) -> bool:
    """`x`, `x is not None`, `len(x) > 0`, as a whole or as a part of an `and`."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and any(_asks(value, name) for value in test.values)
    if isinstance(test, ast.Compare):
        none = isinstance(test.ops[0], ast.IsNot) and is_constant(test.comparators[0], None)
        left = test.left
        counted = isinstance(left, ast.Call) and short_name(left.func) == "len" and bool(left.args)
        return (none and dotted(left) == name) or (counted and dotted(left.args[0]) == name)  # type: ignore[attr-defined]
    return isinstance(test, ast.Name | ast.Attribute) and dotted(test) == name


def _replaced(name: str, test: ast.If | ast.IfExp, call: ast.Call, fn: Function) -> bool:
    """Whether the value is another one by the time it is gathered."""
    return any(dotted(t) == name and test.lineno < t.lineno < call.lineno for t, _ in fn.assigns)


def _also_otherwise(test: ast.If | ast.IfExp, call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether the other side of the condition gathers too."""
    other = test.orelse if isinstance(test.orelse, list) else [test.orelse]
    inside = {id(n) for part in other for n in ast.walk(part)}
    return any(id(c) in inside and facts.sequences.collective(c, fn) is not None for c in fn.calls if c is not call)


def _report(fn: Function, call: ast.Call, test: ast.If | ast.IfExp, name: str, what: str) -> Witness:
    reason = f"{what} for which `{ast.unparse(test.test)}` (line {test.lineno})"
    return Witness(call, fn, name=name, reason=reason, test=test)


MESSAGES = libraries.names("calls that send or receive")
#: What makes one number of an array.
REDUCES = {"max", "min", "norm", "sum", "mean", "amax", "amin", "vdot", "dot"}
KEEPS = {"float", "sqrt", "item", "abs", "fabs", "detach", "cpu"}
DEPTH = 3


def converged_alone(facts: Facts) -> Iterator[Witness]:
    """Report loops with messages to neighbours that end by a number that this rank alone has computed."""
    for fn in facts.module.functions:
        for loop in fn.loops:
            if isinstance(loop, ast.comprehension):
                continue
            calls = [c for c in fn.calls if is_within(c, loop.body)] if _has_messages(facts) else []
            message = next((c for c in calls if _exchanges(c, fn) or _leads_to_message(c, fn, facts)), None)
            if message is None:
                continue
            for test in (loop, *(n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.If))):
                ends = isinstance(test, ast.While) or (
                    isinstance(test, ast.If) and isinstance(test.body[-1], SKIPS[:1] + SKIPS[2:3])
                )
                if ends and (name := _own_number(test, loop, fn, facts)):  # type: ignore[arg-type]
                    yield Witness(test, fn, name=name, message=message)
                    break


def _has_messages(facts: Facts) -> bool:
    return any(origin.startswith(("mpi4py", "torch.distributed")) for origin in facts.module.imports.values())


def _exchanges(call: ast.Call, fn: Function) -> bool:
    """Whether a call exchanges a message with another rank."""
    return short_name(call.func) in MESSAGES and isinstance(call.func, ast.Attribute)


def _leads_to_message(call: ast.Call, fn: Function, facts: Facts) -> bool:
    callee = facts.module.callee(call, fn)
    return callee is not None and callee is not fn and any(facts.ways_to(callee, _exchanges, depth=2))


def _own_number(test: ast.If | ast.While, loop: ast.AST, fn: Function, facts: Facts) -> str:
    """The name that a test compares with a bound, if it is a number of this rank; empty otherwise."""
    compare = test.test
    if not isinstance(compare, ast.Compare) or not isinstance(compare.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return ""
    for side in (compare.left, compare.comparators[0]):
        while isinstance(side, ast.Call) and short_name(side.func) in KEEPS:
            side = side.args[0] if side.args else side.func.value  # type: ignore[attr-defined]
        if isinstance(side, ast.Call) and isinstance(test, ast.While) and _of_array(side, fn, facts):
            return ast.unparse(side)
        if isinstance(side, ast.Name) and _computed(side.id, test, loop, fn, facts):
            return side.id
    return ""


def _computed(name: str, test: ast.AST, loop: ast.AST, fn: Function, facts: Facts) -> bool:
    """Whether a name is given a reduced array of this rank in a loop, and not reduced over the ranks since."""
    # The test of a `while` comes after the whole body, that of an `if` after the lines above it.
    limit = last_line(loop) if isinstance(test, ast.While) else test.lineno  # type: ignore[attr-defined]
    values = [v for v in fn.values_of(name) if is_within(v, loop) and v.lineno <= limit]
    if not values:
        return False
    value = max(values, key=lambda v: v.lineno)
    later = (c for c in fn.calls if value.lineno <= c.lineno <= limit and any(reads(a, name) for a in c.args))
    return not any(facts.module.varying.reduces(c, fn) for c in later) and _of_array(value, fn, facts)


def _of_array(value: ast.expr, fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether a value is one number made of an array, without a collective on the way."""
    while isinstance(value, ast.Call) and short_name(value.func) in KEEPS and not isinstance(value.func, ast.Name):
        value = value.args[0] if value.args else value.func.value  # type: ignore[attr-defined]
    while isinstance(value, ast.Call) and short_name(value.func) in KEEPS and value.args:
        value = value.args[0]
    if not isinstance(value, ast.Call) or SPREADS.search(short_name(value.func)):
        return False
    callee = facts.module.callee(value, fn)
    if callee is not None:
        reduced = any(facts.module.varying.reduces(call, callee) for call in callee.calls)
        returned = [r.value for r in callee.returns if r.value is not None]
        return not reduced and depth < DEPTH and any(_returned(v, callee, facts, depth + 1) for v in returned)
    return short_name(value.func) in REDUCES and isinstance(value.func, ast.Attribute)


def _returned(value: ast.expr, fn: Function, facts: Facts, depth: int) -> bool:
    if isinstance(value, ast.Name):
        value = fn.bound.get(value.id, value)
    return _of_array(value, fn, facts, depth)


LAYERS = ("torch.nn.", "nn.")
COUNTS = ("any", "all", "sum", "numel", "nonzero", "max", "min")  # of the elements of a tensor


def unused_on_one_rank(facts: Facts) -> Iterator[Witness]:
    """Report layers that `forward` calls under a test that ranks decide differently, where gradients are averaged."""
    average = _averaged(facts)
    for fn in facts.module.functions if average is not None else ():
        if fn.name != "forward" or fn.cls is None or not fn.cls.is_model:
            continue
        for test in fn.tests:
            conditions = facts.sequences.conditions(test.test, fn) if isinstance(test, ast.If) else []
            why = conditions[0].why if conditions else _counts_input(test, fn) if isinstance(test, ast.If) else ""
            layer = _on_one_side(test, fn) if why else None  # type: ignore[arg-type]
            if layer is not None and average is not None:
                yield Witness(test, fn, why=why, layer=layer, average=average)
                break


def _averaged(facts: Facts) -> ast.Call | None:
    """The call that averages the gradients of used parameters alone, by a wrapper or by hand."""
    for fn in facts.module.functions:
        for call in fn.calls:
            unused = keyword(call, "find_unused_parameters", 6)
            # With `find_unused_parameters` the wrapper waits for no gradient of a layer that was not called.
            if short_name(call.func) in WRAPPERS and not (unused is not None and not is_constant(unused, False)):
                return call
            around = enclosing(call, ast.If)
            if not isinstance(around, ast.If) or "grad is not None" not in ast.unparse(around.test):
                continue
            collective = facts.sequences.collective(call, fn)
            if collective is not None and collective.name == "all_reduce":
                return call
    return None


def _counts_input(test: ast.If, fn: Function) -> str:
    """Why a test of a batch differs from rank to rank: it counts elements of what `forward` was given."""
    for call in (n for n in ast.walk(test.test) if isinstance(n, ast.Call)):
        counted = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in COUNTS else None
        while isinstance(counted, ast.Subscript | ast.Attribute | ast.Compare):
            counted = counted.left if isinstance(counted, ast.Compare) else counted.value
        if isinstance(counted, ast.Name) and counted.id in fn.parameters and counted.id != fn.self_name:
            return DATA
    return ""


def _on_one_side(test: ast.If, fn: Function) -> ast.Call | None:
    """The layer that one side of a test calls and the other does not."""
    yes, no = _layers(test.body, fn), _layers(test.orelse, fn)
    last = test.body[-1]
    # A side that leaves misses the layers that follow the test.
    if isinstance(last, SKIPS) and not test.orelse:
        no = [call for call in _layers(fn.body, fn) if call.lineno > last_line(test)]
    names = [{dotted(call.func) for call in side} for side in (yes, no)]
    # A layer that is called outside of the test, too, gets its gradient on every rank.
    rest = {dotted(c.func) for c in _layers(fn.body, fn) if c not in yes and c not in no}
    return next((c for c in (*yes, *no) if dotted(c.func) not in (names[0] & names[1]) | rest), None)


def _layers(body: list[ast.stmt], fn: Function) -> list[ast.Call]:
    """The calls of own layers in some statements."""
    inside = {id(node) for statement in body for node in ast.walk(statement)}
    calls = ((c, fn.looped.get(c.func.id) if isinstance(c.func, ast.Name) else c.func) for c in fn.calls)
    return [c for c, of in calls if id(c) in inside and isinstance(of, ast.Attribute) and _is_layer(of, fn)]


def _is_layer(node: ast.Attribute, fn: Function) -> bool:
    """Whether an attribute of the model has parameters: a layer of PyTorch, another model, or one that was given."""
    if fn.cls is None or dotted(node.value) != fn.self_name or fn.cls.method(node.attr) is not None:
        return False
    return any(_has_parameters(v, fn.cls) for cls in fn.cls.ancestry for v, _ in cls.values.get(node.attr, ()))


def _has_parameters(value: ast.expr, cls: Class) -> bool:
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.Name)  # an encoder that the constructor was given
    name = short_name(value.func)
    layer_class = cls.module.classes.get(name)
    plain = ("Dropout", "ReLU", "GELU", "Softmax", "Identity", "MaxPool", "AvgPool", "Flatten", "Upsample", "Sigmoid")
    is_layer = cls.module.canonical(value.func).startswith(LAYERS) and not name.startswith(plain)
    return is_layer or (layer_class is not None and layer_class.is_model)
