"""Which functions of a file a call may run, where its name alone does not say so."""

from __future__ import annotations

import ast

from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.values.module import Module

MOST = 6  # functions that one call may run; where there are more, nothing is said of any


def targets(call: ast.Call, fn: Function, module: Module) -> list[Function]:
    """The functions that a call may run; the one that its name says comes first."""
    named = module.callee(call, fn)
    functions = module.objects.functions(call.func, fn)
    around = module.objects.index.scope(call.func.id, fn) if isinstance(call.func, ast.Name) else fn
    if around is not fn and call.func.id in around.parameters:  # type: ignore[attr-defined]
        functions = [each for each in functions if not _is_decorated(each, around, module)]
        named = named if named in functions else None
    if named is not None:
        functions = [named, *(each for each in functions if each is not named)] if len(functions) <= MOST else [named]
    return functions if len(functions) <= MOST else []


def functions_of(node: ast.expr, fn: Function, module: Module) -> list[Function]:
    """The functions that an expression may be the value of, constructors included."""
    named = module.function_named(node, fn)
    functions = module.objects.functions(node, fn)
    if not functions and named is not None:
        return [named]
    return functions if len(functions) <= MOST else []


def _is_decorated(fn: Function, decorator: Function, module: Module) -> bool:
    """Whether a decorator is around a function: what its wrapper does is taken for a part of the function."""
    around = fn.outer or module.top
    decorators = getattr(fn.node, "decorator_list", ())
    return any(value.what is decorator for each in decorators for value in module.objects.of(each, around))
