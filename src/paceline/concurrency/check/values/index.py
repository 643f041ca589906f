"""What the syntax of a program says about variables, classes and containers, looked up by name.

Everything here is read off the declarations once, when it is first needed; nothing is followed.
"""

from __future__ import annotations

import ast
from functools import cached_property

from paceline.concurrency.check.syntax.declarations import Class, Declarations, Function
from paceline.concurrency.check.syntax.names import dotted, keyword
from paceline.concurrency.check.values.sources import FILLS, Slot, Source, of_variables, slot_of


class Index:
    """The declarations of a program, by what reads them."""

    def __init__(self, module: Declarations) -> None:
        self._module = module
        self._variables: dict[Function, dict[str, list[Source]]] = {}
        self._locals: dict[Function, frozenset[str]] = {}
        self._scopes: dict[tuple[Function, str], Function] = {}

    def scope(self, name: str, fn: Function) -> Function:
        """The function in which a name that another one uses is bound; the top level of the file for all others."""
        owner = self._scopes.get((fn, name))
        if owner is None:
            owner = self._scopes[fn, name] = self._scope(name, fn)
        return owner

    def _scope(self, name: str, fn: Function) -> Function:
        """The unremembered part of `scope`."""
        shared = fn.globals
        for scope in fn.scopes():
            if name in shared or scope is self._module.top:
                break
            if name in self._bound(scope):
                return scope
            shared = shared | scope.globals
        return self._module.top

    def _bound(self, fn: Function) -> frozenset[str]:
        """The names that a function binds."""
        if fn not in self._locals:
            bound = {*fn.parameters, *fn.nested, *fn.bound, *fn.looped, *fn.imported, *(n.id for n in fn.stores)}
            self._locals[fn] = frozenset(bound - fn.globals - fn.nonlocals)
        return self._locals[fn]

    def variable(self, scope: Function, name: str) -> list[Source]:
        """Where the values of a variable come from: its own statements, and those that share it as a global."""
        return [*self._own(scope).get(name, ()), *self._shared.get((scope, name), ())]

    def _own(self, fn: Function) -> dict[str, list[Source]]:
        if fn not in self._variables:
            self._variables[fn] = of_variables(fn)
        return self._variables[fn]

    @cached_property
    def _shared(self) -> dict[tuple[Function, str], list[Source]]:
        """What functions assign to variables that they declare `global` or `nonlocal`."""
        sources: dict[tuple[Function, str], list[Source]] = {}
        for fn in self._module.functions:
            for name in fn.globals | fn.nonlocals if fn is not self._module.top else ():
                owner = self.scope(name, fn.outer if name in fn.nonlocals and fn.outer is not None else fn)
                sources.setdefault((owner, name), []).extend(self._own(fn).get(name, ()))
        return sources

    # -- classes

    def family(self, cls: Class) -> list[Class]:
        """All classes that may set an attribute of an object of a class: its bases, the derived ones, and theirs."""
        return list(dict.fromkeys([*cls.ancestry, *(c for each in self.derived(cls) for c in each.ancestry)]))

    def derived(self, cls: Class) -> list[Class]:
        """The classes that are derived from a class."""
        return self._derived.get(cls, [])

    @cached_property
    def _derived(self) -> dict[Class, list[Class]]:
        subclasses: dict[Class, list[Class]] = {}
        for cls in self._module.classes.values():
            for base in cls.ancestry[1:]:
                subclasses.setdefault(base, []).append(cls)
        return subclasses

    @cached_property
    def members(self) -> set[str]:
        """The names of all methods and attributes of the program's classes, and of what it assigns to others."""
        names = set(self._assigned)
        for cls in self._module.classes.values():
            names |= {*cls.methods, *cls.values, *cls.annotations}
        return names

    # -- what is assigned and filled elsewhere

    def assigned(self, attribute: str) -> list[tuple[ast.expr, Source]]:
        """(object, value) of the assignments to an attribute that its class does not know of."""
        return self._assigned.get(attribute, [])

    @cached_property
    def _assigned(self) -> dict[str, list[tuple[ast.expr, Source]]]:
        assignments: dict[str, list[tuple[ast.expr, Source]]] = {}
        for fn in self._module.functions:
            for target, value in fn.assigns:
                if isinstance(target, ast.Attribute) and not self._is_own(target, fn):
                    assignments.setdefault(target.attr, []).append((target.value, Source("is", value, fn)))
                for number, part in enumerate(target.elts if isinstance(target, ast.Tuple) else ()):
                    if isinstance(part, ast.Attribute):
                        assignments.setdefault(part.attr, []).append((part.value, Source("item", value, fn, number)))
            for call in fn.calls:
                if isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3:
                    name = str(slot_of(call.args[1]))
                    assignments.setdefault(name, []).append((call.args[0], Source("is", call.args[2], fn)))
        return assignments

    @staticmethod
    def _is_own(target: ast.Attribute, fn: Function) -> bool:
        return fn.cls is not None and dotted(target.value) in (fn.self_name, fn.cls.name, "cls")

    @cached_property
    def fills(self) -> list[tuple[ast.expr, Slot, Source]]:
        """(container, key, value) of everything that is put into a container or queue."""
        entries: list[tuple[ast.expr, Slot, Source]] = []
        for fn in self._module.functions:
            for call in fn.calls:
                if not isinstance(call.func, ast.Attribute) or call.func.attr not in FILLS:
                    continue
                position, unpacked = FILLS[call.func.attr]
                value = call.args[position] if position < len(call.args) else keyword(call, "item")
                if value is not None and not isinstance(value, ast.Constant):
                    key = slot_of(call.args[0]) if call.func.attr == "setdefault" else None
                    entries.append((call.func.value, key, Source("element" if unpacked else "is", value, fn)))
            for target, value in fn.assigns:
                if isinstance(target, ast.Subscript) and not isinstance(value, ast.Constant):
                    entries.append((target.value, slot_of(target.slice), Source("is", value, fn)))
        return entries
