"""A part of a model that one rank does not use in a step, while the gradients are averaged parameter by parameter."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import WRAPPERS
from paceline.concurrency.check.ranks.sequences import SKIPS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing, last_line
from paceline.concurrency.check.varying.reasons import DATA

LAYERS = ("torch.nn.", "nn.")
COUNTS = ("any", "all", "sum", "numel", "nonzero", "max", "min")  # of the elements of a tensor


def find(facts: Facts) -> Iterator[Witness]:
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
                yield Witness(test, fn, why=why, layer=layer, average=average)  # type: ignore[arg-type]
                break


def _averaged(facts: Facts) -> ast.Call | None:
    """The call that averages the gradients of used parameters alone, by a wrapper or by hand."""
    for fn in facts.module.functions:
        for call in fn.calls:
            unused = keyword(call, "find_unused_parameters", 6)
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
    if isinstance(last, SKIPS) and not test.orelse:
        no = [call for call in _layers(fn.body, fn) if call.lineno > last_line(test)]
    names = [{dotted(call.func) for call in side} for side in (yes, no)]
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
