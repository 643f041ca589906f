"""What a call runs: a function of the file, or a method of a library, by its canonical name.

`self.session.get(...)`, where `self.session = requests.Session()`, runs `requests.Session.get`. An object is known by
the call that makes it, through names, attributes, `with ... as`, parameters and their annotations; what a function of a
library returns is data in libraries/returns.json.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries.catalogue import RETURNS_MODEL
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, short_name
from paceline.concurrency.check.values.module import Module

DEPTH = 4  # assignments and calls through which an object is followed


class Origin(NamedTuple):
    """What is known of an object of a library."""

    type: str  # the canonical name of its class
    call: ast.Call | None = None  # what made it


UNKNOWN = Origin("")


def method_name(function: ast.expr, fn: Function, module: Module) -> str:
    """The canonical name of the function that a call runs; of a method, with the class of its object where known."""
    if isinstance(function, ast.Attribute) and not _is_imported(function, module):
        owner = type_name(function.value, fn, module)
        if owner:
            return f"{owner}.{function.attr}"
    return module.canonical(function).replace("()", "")


def is_own_file(node: ast.expr, fn: Function, module: Module) -> bool:
    """Whether this is a file that no other process can name: one in memory, or a temporary one."""
    parts = [part for part in ast.walk(node) if isinstance(part, ast.Call | ast.Name | ast.Attribute)]
    values = [fn.bound.get(part.id, part) if isinstance(part, ast.Name) else part for part in parts]
    names = [module.canonical(value.func) for value in values if isinstance(value, ast.Call)]
    return not _OWN_FILES.isdisjoint(names) or any(type_name(part, fn, module) in _OWN_FILES for part in parts)


_OWN_FILES = libraries.names("files that no other process can name")


def _is_imported(node: ast.expr, module: Module) -> bool:
    return dotted(node).partition(".")[0] in module.imports


def type_name(node: ast.expr, fn: Function, module: Module) -> str:
    """The canonical name of the class of an object of a library; empty when it is not known."""
    return _origin(node, fn, module, 0).type


def constructor(node: ast.expr, fn: Function, module: Module) -> ast.Call | None:
    """The call of a library that makes an object; None when it is not known."""
    return _origin(node, fn, module, 0).call


def _origin(node: ast.expr, fn: Function, module: Module, depth: int) -> Origin:
    """What is known of an object; of a result of the program's own function, by what that makes."""
    if depth > DEPTH:
        return UNKNOWN
    return module.objects.once("origin", node, fn, lambda: _found(node, fn, module, depth))


def _found(node: ast.expr, fn: Function, module: Module, depth: int) -> Origin:
    if isinstance(node, ast.Await):
        return _origin(node.value, fn, module, depth + 1)
    annotation = _annotation(node, fn, module)
    if annotation is not None and (name := _annotated(annotation, module)):
        return Origin(name)
    origins = (_made_by(call, scope, module, depth + 1) for call, scope in module.objects.made(node, fn))
    return next((origin for origin in origins if origin.type), UNKNOWN)


def _annotation(node: ast.expr, fn: Function, module: Module) -> ast.expr | None:
    """How a parameter, an attribute of a class, or the parameter that is kept in it, is annotated."""
    if isinstance(node, ast.Name):
        return module.objects.index.scope(node.id, fn).parameters.get(node.id)
    owner = module.type_of(node.value, fn) if isinstance(node, ast.Attribute) else None
    annotations = [c.annotations.get(node.attr) for c in (owner.ancestry if owner is not None else ())]  # type: ignore[attr-defined]
    kept = (pair for pair in module.given(node, fn) if isinstance(pair[0], ast.Name))
    annotations += [scope.parameters.get(value.id) for value, scope in kept]  # type: ignore[attr-defined]
    return next((annotation for annotation in annotations if annotation is not None), None)


def _made_by(call: ast.Call, fn: Function, module: Module, depth: int) -> Origin:
    """What a call of a library returns: an object of its own class, or of what its data say."""
    if not isinstance(call.func, ast.Name | ast.Attribute):
        return UNKNOWN
    owner, name = UNKNOWN, module.canonical(call.func).replace("()", "")
    if not _is_imported(call.func, module):
        owner = _origin(call.func.value, fn, module, depth + 1) if isinstance(call.func, ast.Attribute) else UNKNOWN
        if not owner.type:
            return UNKNOWN
        name = f"{owner.type}.{short_name(call.func)}"
    result = libraries.returns(name) or (name if name.rpartition(".")[2][:1].isupper() else "")
    return owner if not result and short_name(call.func) in RETURNS_MODEL else Origin(result, call)


def _annotated(annotation: ast.expr, module: Module) -> str:
    """The imported class that an annotation names: `Pool`, `"Pool"`, `Optional[Pool]`, `Pool | None`."""
    if isinstance(annotation, ast.BinOp):
        return _annotated(annotation.left, module) or _annotated(annotation.right, module)
    if isinstance(annotation, ast.Subscript) and short_name(annotation.value) in ("Optional", "Annotated"):
        return _annotated(annotation.slice, module)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        head, dot, rest = annotation.value.partition("|")[0].strip().partition(".")
        name = module.imports.get(head, "") + dot + rest
    else:
        name = module.canonical(annotation) if _is_imported(annotation, module) else ""
    return name if name.rpartition(".")[2][:1].isupper() else ""


# Which functions of a file a call may run, where its name alone does not say so.

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
