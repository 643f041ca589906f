"""What library an object is of: the canonical name of the class whose method a call runs.

`self.session.get(...)`, where `self.session = requests.Session()`, runs `requests.Session.get`. An object is known by
the call that makes it, through names, attributes, `with ... as`, parameters and their annotations; what a function of a
library returns is data in libraries/returns.json.
"""

from __future__ import annotations

import ast

from paceline.check import libraries
from paceline.check.libraries.catalogue import RETURNS_MODEL
from paceline.check.syntax.declarations import Function
from paceline.check.syntax.names import dotted
from paceline.check.values.module import Module

DEPTH = 4  # assignments and calls through which an object is followed


def method_name(function: ast.expr, fn: Function, module: Module) -> str:
    """The canonical name of the function that a call runs; of a method, with the class of its object where known."""
    if isinstance(function, ast.Attribute) and not _is_imported(function, module):
        owner = type_name(function.value, fn, module)
        if owner:
            return f"{owner}.{function.attr}"
    return module.canonical(function).replace("()", "")


def _is_imported(node: ast.expr, module: Module) -> bool:
    return dotted(node).partition(".")[0] in module.imports


def type_name(node: ast.expr, fn: Function, module: Module, depth: int = 0) -> str:
    """The canonical name of the class of an object of a library; empty when it is not known."""
    if depth > DEPTH:
        return ""
    if isinstance(node, ast.Await):
        return type_name(node.value, fn, module, depth + 1)
    if isinstance(node, ast.Call):
        return _made_by(node, fn, module, depth)
    found: list[tuple[ast.expr, Function]] = []
    if isinstance(node, ast.Name):
        for scope in fn.scopes():
            if node.id in scope.bound:
                found = [(scope.bound[node.id], scope)]
                break
            if node.id in scope.parameters:
                annotation = scope.parameters[node.id]
                if annotation is not None:
                    return _annotated(annotation, module)
                found = [(given.value, given.caller) for given in module.passing.to(scope, node.id)]
                break
            found = _first_of_several(node.id, scope)
            if found:
                break
    elif isinstance(node, ast.Attribute):
        owner = module.type_of(node.value, fn)
        for cls in owner.ancestry if owner is not None else ():
            found += cls.values.get(node.attr, ())
            found += [pair for method in cls.methods.values() for pair in _first_of_several(dotted(node), method)]
            if not found and node.attr in cls.annotations:
                return _annotated(cls.annotations[node.attr], module)
    return next(
        (t for value, scope in found if value is not node and (t := type_name(value, scope, module, depth + 1))), ""
    )


def _first_of_several(name: str, fn: Function) -> list[tuple[ast.expr, Function]]:
    """The call of which a name gets the first result, as in `engine, optimizer, _, _ = deepspeed.initialize()`."""
    return [
        (value, fn)
        for target, value in fn.assigns
        if isinstance(target, ast.Tuple) and target.elts and dotted(target.elts[0]) == name
        if isinstance(value, ast.Call)
    ]


def _made_by(call: ast.Call, fn: Function, module: Module, depth: int) -> str:
    """The class of what a call returns: its own, what a library says, or what a function of the file returns."""
    callee = module.callee(call, fn)
    if callee is not None and callee.name != "__init__":
        values = (r.value for r in callee.returns if r.value is not None)
        return next((t for value in values if (t := type_name(value, callee, module, depth + 1))), "")
    if not isinstance(call.func, ast.Name | ast.Attribute):
        return ""
    if _is_imported(call.func, module):
        name = module.canonical(call.func).replace("()", "")
        return libraries.returns(name) or (name if name.rpartition(".")[2][:1].isupper() else "")
    owner = type_name(call.func.value, fn, module, depth + 1) if isinstance(call.func, ast.Attribute) else ""
    if not owner:
        return ""
    same = owner if call.func.attr in RETURNS_MODEL else ""  # type: ignore[union-attr]
    return libraries.returns(f"{owner}.{call.func.attr}") or same  # type: ignore[union-attr]


def _annotated(annotation: ast.expr, module: Module) -> str:
    name = module.canonical(annotation)
    return name if _is_imported(annotation, module) and name.rpartition(".")[2][:1].isupper() else ""
