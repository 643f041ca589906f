"""Which functions of a file a call may run, where its name alone does not say so.

A callback that was passed as an argument, kept in an attribute or put into a list of subscribers is followed back to
the functions that were passed, and a method of the own object may be the one that a subclass of this file puts in its
place.
"""

from __future__ import annotations

import ast

from paceline.check.syntax.declarations import Function
from paceline.check.syntax.names import dotted
from paceline.check.values.module import Module

DEPTH = 4  # assignments and arguments through which a function is followed
MOST = 6  # functions that one call may run; where there are more, nothing is said of any
_LOOKS_UP = {"get", "pop", "popleft", "setdefault"}


def targets(call: ast.Call, fn: Function, module: Module) -> list[Function]:
    """The functions that a call may run; the one that its name says comes first."""
    named = module.callee(call, fn)
    if named is not None:
        return [named, *_overriding(call.func, named, fn, module), *_wrappers(named, module)]
    found = _values(call.func, fn, module, 0)
    return found if len(found) <= MOST else []


def functions_of(node: ast.expr, fn: Function, module: Module) -> list[Function]:
    """The functions that an expression may be the value of, constructors included."""
    named = module.function_named(node, fn)
    found = [named] if named is not None else _values(node, fn, module, 0)
    return found if len(found) <= MOST else []


def _wrappers(named: Function, module: Module) -> list[Function]:
    """The functions of this file that decorators put in the place of a function."""
    found: list[Function] = []
    for decorator in getattr(named.node, "decorator_list", ()):
        name = decorator.func if isinstance(decorator, ast.Call) else decorator
        maker = module.top.nested.get(name.id) if isinstance(name, ast.Name) else None
        for _ in range(2 if isinstance(decorator, ast.Call) else 1):
            returned = [r.value for r in maker.returns if isinstance(r.value, ast.Name)] if maker is not None else []
            maker = maker.nested.get(returned[0].id) if maker is not None and len(returned) == 1 else None
        found += [maker] if maker is not None else []
    return found


def _overriding(node: ast.expr, named: Function, fn: Function, module: Module) -> list[Function]:
    """The methods of subclasses that `self.method()` may run in place of the named one."""
    if named.cls is None or not isinstance(node, ast.Attribute) or dotted(node.value) != fn.self_name or not fn.cls:
        return []
    below = [c for c in module.classes.values() if c is not named.cls and fn.cls in c.ancestry]
    found = [c.methods[named.name] for c in below if named.name in c.methods]
    return found if len(found) <= MOST else []


def _values(node: ast.expr, fn: Function, module: Module, depth: int) -> list[Function]:
    """The functions that an expression may be the value of."""
    named = module.function_named(node, fn)
    if named is not None and named.name != "__init__":
        return [named]
    if depth > DEPTH:
        return []
    sources: list[tuple[ast.expr, Function]] = []
    if isinstance(node, ast.Name):
        sources = _of_name(node.id, fn, module)
    elif isinstance(node, ast.Attribute):
        owner = module.type_of(node.value, fn)
        sources = [pair for cls in owner.ancestry for pair in cls.values.get(node.attr, ())] if owner else []
    elif isinstance(node, ast.Subscript):
        sources = _elements(node.value, fn, module)
    elif isinstance(node, ast.Call) and (maker := module.callee(node, fn)) is not None and not maker.asynchronous:
        sources = [(given.value, maker) for given in maker.returns if given.value is not None]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKS_UP:
        sources = _elements(node.func.value, fn, module)
    found: list[Function] = []
    for value, scope in sources:
        if value is not node:
            found += [f for f in _values(value, scope, module, depth + 1) if f not in found]
    return found


def _of_name(name: str, fn: Function, module: Module) -> list[tuple[ast.expr, Function]]:
    """What a name may have been bound to: by an assignment, by a loop, or by the callers."""
    for scope in fn.scopes():
        if name in scope.bound:
            return [(scope.bound[name], scope)]
        if name in scope.looped:
            return _elements(scope.looped[name], scope, module)
        if name in scope.parameters:
            return [(given.value, given.caller) for given in module.passing.to(scope, name)]
    return []


def _elements(node: ast.expr, fn: Function, module: Module) -> list[tuple[ast.expr, Function]]:
    container = module.containers.of(node, fn)
    return list(container.elements) if container is not None else []
