"""Resolves names within a file: which of them are locks, queues and threads, and which function a call runs.

A resource is known by identity: `Pool._lock` is the attribute of a class, `LOCK` a global, `run.lock` a local of `run`.
A lock whose creation was not seen, and which is only named like one, is not `sure`.
"""

from __future__ import annotations

import ast
from functools import cached_property
from typing import NamedTuple

from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.ranks.varying import Varying
from paceline.concurrency.check.syntax.declarations import Class, Declarations, Formal, Function, Resource
from paceline.concurrency.check.syntax.tree import dotted, is_constant, keyword, parent, short_name
from paceline.concurrency.check.together import Meeting, of_own_file
from paceline.concurrency.check.values.guesses import ByUse, derived, guessed, lock_class
from paceline.concurrency.check.values.objects import Objects
from paceline.concurrency.check.values.sources import FILLS, adopt, slot_of

MANAGERS = {"Manager", "SyncManager"}
ALIASES = 4  # assignments through which a name is followed
WRAPPING = ("partial", "WeakMethod", "ref", "wraps")  # calls that stand for the function that they are given


class Module(Declarations):
    """The declarations of a file, with names resolved."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self.objects = Objects(self)
        adopt(self.functions, self.type_of)
        self.objects.guess = lambda fn, name: self._by_use.of(fn, name)

    @cached_property
    def _by_use(self) -> ByUse:
        return ByUse(self.classes.values())

    @cached_property
    def varying(self) -> Varying:
        """Return the expressions that differ from rank to rank."""
        return Varying(self, self.objects, self.callee, self.type_of)

    @cached_property
    def meeting(self) -> Meeting:
        """Which functions run in one program."""
        return Meeting(self.functions, self.top, self.function_named)

    @cached_property
    def wrappers(self) -> Wrappers:
        """What wraps or shards the models of this file."""
        return Wrappers(self, self.meeting)

    # -- resources

    def constructed(self, value: ast.expr, fn: Function) -> tuple[str, ast.Call] | None:
        """The kind of resource that this expression creates, and the call that creates it."""
        if isinstance(value, ast.IfExp):
            return self.constructed(value.body, fn) or self.constructed(value.orelse, fn)
        if isinstance(value, ast.BoolOp):
            return next((m for v in value.values if (m := self.constructed(v, fn))), None)
        if not isinstance(value, ast.Call):
            return None
        kind = self.constructed_kind(value, fn)
        return None if kind is None else (kind, value)

    def constructed_kind(self, call: ast.Call, fn: Function) -> str | None:
        """The kind of resource that this call creates; None when it creates none."""
        name = self.canonical(call.func)
        if (kind := catalogue.CONSTRUCTORS.get(name)) is not None:
            return kind
        words = name.split(".")
        if (cls := self.classes.get(name)) is not None:
            return derived(cls) or lock_class(cls, self.attribute)
        if words[-1] == "field":  # dataclasses
            factory = keyword(call, "default_factory")
            return None if factory is None else catalogue.CONSTRUCTORS.get(self.canonical(factory))
        if words[-1] == "submit" and len(words) > 1:
            return "Future"
        if words[-1] not in catalogue.CONTEXT_MAKES or len(words) < 2:
            short = ".".join(words[-2:])
            return catalogue.CONSTRUCTORS.get(short) if len(words) > 2 else None
        makers = self.objects.made(call.func.value, fn) if isinstance(call.func, ast.Attribute) else []
        names = {short_name(maker.func) for maker, _ in makers}
        managed = words[-1] in catalogue.MANAGER_MAKES and not names.isdisjoint(MANAGERS)
        in_context = managed or "get_context" in names
        return catalogue.CONSTRUCTORS.get(".".join(["multiprocessing" if in_context else words[-2], words[-1]]))

    def resource(self, node: ast.expr, fn: Function, depth: int = 0) -> Resource | None:
        """The lock, queue, thread or other resource that an expression names; None when it names none."""
        text = dotted(node)
        if not text or depth > ALIASES:
            return None
        if text.endswith("]") or "[]" in text:
            text = ast.unparse(node)  # elements are distinguished by their index
        if text in fn.memo:
            return fn.memo[text]
        fn.memo[text] = None
        result = self._resource(node, text, fn, depth)
        if result is None or not result.sure:
            result = self._made(node, fn) or result
        fn.memo[text] = result
        return result

    def _made(self, node: ast.expr, fn: Function) -> Resource | None:
        """The one resource that an expression may be, known by where it is made."""
        constructors = [
            (kind, c, at) for c, at in self.objects.made(node, fn) if (kind := self.constructed_kind(c, at))
        ]
        if not constructors or len({kind for kind, _, _ in constructors}) > 1:
            return None
        names = [name_of_site(call, at) for _, call, at in constructors]
        kind, call, at = constructors[0]
        resource = self._new(names[0].id, (kind, call), at)
        several = names[0].several or len({name.id for name in names}) > 1
        return resource._replace(one_of_several=True) if several else resource

    def _resource(self, node: ast.expr, text: str, fn: Function, depth: int) -> Resource | None:
        """The uncached part of `resource`."""
        if isinstance(node, ast.Name):
            if fn.cls is not None and node.id == fn.self_name and (kind := derived(fn.cls)) is not None:
                return Resource(fn.cls.name, kind, True)
            return self._of_name(node.id, fn, depth)
        if isinstance(node, ast.Attribute):
            owner = self.type_of(node.value, fn)
            if owner is not None:
                return self.attribute(owner, node.attr) or guessed(f"{owner.name}.{node.attr}", node.attr)
            only = self._only_owner(node.attr, node.lineno)
            if only is not None and not isinstance(node.value, ast.Call):
                return self.attribute(only, node.attr)
            scope = fn.cls.name + ":" if fn.cls is not None and text.split(".")[0] == fn.self_name else ""
            return guessed(scope + self.canonical(node), node.attr)
        if isinstance(node, ast.Subscript):
            if (element := self._element(node.value, fn, depth)) is not None:
                if isinstance(node.slice, ast.Constant):
                    return element._replace(id=f"{element.id[:-1]}{node.slice.value!r}]", one_of_several=False)
                return element
            name = short_name(node.value)
            resource = guessed((fn.cls.name + ":" if fn.cls else "") + text, name)
            return resource and resource._replace(one_of_several=True)
        if isinstance(node, ast.Call):
            if (lock := self._own_lock(node, fn)) is not None:
                return lock
            construction = self.constructed(node, fn)
            if construction is not None:
                return Resource(f"{fn.qualname}:{node.lineno}", construction[0], True, False, True, node.lineno)
            if self.callee(node, fn) is None:
                resource = guessed((fn.cls.name + ":" if fn.cls else "") + text, short_name(node.func))
                return resource and resource._replace(one_of_several=True)
        return None

    def _own_lock(self, node: ast.Call, fn: Function) -> Resource | None:
        """The lock that an object of a library has of its own, and gives to those who ask: `value.get_lock()`."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in catalogue.GIVES_LOCK:
            return None
        names = {name_of_site(call, maker).id for call, maker in self.objects.made(node.func.value, fn)}
        return Resource(f"{names.pop()}.{node.func.attr}()", "RLock", True) if len(names) == 1 else None

    def _of_name(self, name: str, fn: Function, depth: int) -> Resource | None:
        """A local, a parameter, a global or an imported name as a resource."""
        for scope in fn.scopes():
            value = scope.bound.get(name)
            if name in fn.globals and scope is not self.top:
                continue
            if value is not None:
                construction = self.constructed(value, scope)
                where = name if scope is self.top else f"{scope.qualname}.{name}"
                if construction is not None:
                    return self._new(where, construction, scope)
                if isinstance(value, ast.Name | ast.Attribute | ast.Subscript) and dotted(value) != name:
                    return self.resource(value, scope, depth + 1) or guessed(where, name)
                return guessed(where, name)
            if name in scope.looped and (element := self._element(scope.looped[name], scope, depth)) is not None:
                return element
            if name in scope.parameters:
                return self._of_parameter(name, scope, depth)
        origin = self.imports.get(name)
        return guessed(origin, name) if origin is not None else None

    def _of_parameter(self, name: str, fn: Function, depth: int) -> Resource | None:
        """A parameter: the one resource that all callers pass, or one that differs from call to call."""
        annotation, where = fn.parameters[name], f"{fn.qualname}.{name}"
        resources = [self.resource(a.value, a.caller, depth + 1) for a in self.objects.arguments(fn, name)]
        certain = [r for r in resources if r is not None and r.sure]
        if certain:  # further callers, of which less is known, make it no less the lock of these
            first, alike = certain[0], len(certain) == len(resources) and all(r.id == certain[0].id for r in certain)
            if alike and not first.one_of_several:
                return first
            bounded = any(r.bounded for r in certain)
            return Resource(where, first.kind, True, first.non_reentrant, formal=Formal(fn, name), bounded=bounded)
        kind = catalogue.CONSTRUCTORS.get(self.canonical(annotation)) if annotation is not None else None
        if kind is not None:
            return Resource(where, kind, True, kind in catalogue.NON_REENTRANT, formal=Formal(fn, name))
        resource = guessed(where, name)
        return resource and resource._replace(formal=Formal(fn, name))

    def _element(self, node: ast.expr, fn: Function, depth: int) -> Resource | None:
        """One of the resources that a container holds."""
        holders = [v for v in self.objects.of(node, fn) if v.kind == "container" and v.fn is not None]
        holder, maker = (holders[0].what, holders[0].fn) if holders and depth <= ALIASES else (None, None)
        for value in self.objects.elements(node, fn) if isinstance(holder, ast.expr) and maker is not None else ():
            made = self.constructed(value.what, value.fn) if isinstance(value.what, ast.Call) and value.fn else None
            if made is not None and value.fn is not None:
                name = name_of_site(holder, maker).id  # type: ignore[arg-type]
                return self._new(f"{name}[]", made, value.fn)._replace(one_of_several=True)
        return None

    def attribute(self, owner: Class, attribute: str) -> Resource | None:
        """The resource that a class or its bases assign to an attribute."""
        for cls in owner.ancestry:
            values = cls.values.get(attribute, ())
            for value, fn in values:
                construction = self.constructed(value, fn)
                if construction is not None:
                    return self._new(f"{cls.name}.{attribute}", construction, fn)
            for value, fn in values:
                if isinstance(value, ast.Attribute | ast.Name) and dotted(value) != f"{fn.self_name}.{attribute}":
                    resource = self.resource(value, fn, 1)
                    if resource is not None and not isinstance(value, ast.Name):
                        return resource
                    if resource is not None:
                        is_passed = isinstance(value, ast.Name) and resource.id != f"{fn.qualname}.{value.id}"
                        is_owned = not is_passed or not resource.sure
                        return resource._replace(id=f"{cls.name}.{attribute}") if is_owned else resource
        return None

    def _new(self, where: str, construction: tuple[str, ast.Call], fn: Function) -> Resource:
        """The resource that a constructor call creates; a Condition shares the identity of its lock."""
        kind, call = construction
        if kind in ("Condition", "AsyncCondition") and (inner := keyword(call, "lock", 0)) is not None:
            lock = self.constructed(inner, fn)
            if lock is not None:
                alone = lock[0] in catalogue.NON_REENTRANT
                return Resource(where, kind, True, alone, False, call.lineno)
            shared = self.resource(inner, fn, 1)
            if shared is not None:
                return Resource(shared.id, kind, shared.sure, shared.non_reentrant, shared.one_of_several, shared.line)
            return Resource(where, kind, True, False, False, call.lineno)
        size = keyword(call, "maxsize", 0) if kind in catalogue.QUEUES else None
        bounded = size is not None and not is_constant(size, 0)
        alone = kind in catalogue.NON_REENTRANT or kind == "AsyncCondition"
        return Resource(where, kind, True, alone, False, call.lineno, None, bounded)

    @cached_property
    def _owners(self) -> dict[str, list[Class]]:
        """Attribute -> the classes that assign a resource to it."""
        owners: dict[str, list[Class]] = {}
        for cls in self.classes.values():
            for attribute, values in cls.values.items():
                if any(self.constructed(value, fn) for value, fn in values):
                    owners.setdefault(attribute, []).append(cls)
        return owners

    def _only_owner(self, attribute: str, line: int) -> Class | None:
        """The class whose attribute of this name is a resource, if there is just one such class."""
        owners = of_own_file(self._owners.get(attribute, ()), line, lambda cls: cls.node.lineno)
        return owners[0] if len(owners) == 1 else None

    # -- types and calls

    def given(self, node: ast.expr, fn: Function) -> list[tuple[ast.expr, Function]]:
        """What a variable was assigned last, what calls pass for a parameter, and what assigns an attribute."""
        for scope in fn.scopes() if isinstance(node, ast.Name) else ():
            if node.id in scope.bound:  # type: ignore[attr-defined]
                values = scope.values_of(node.id) or [scope.bound[node.id]]  # type: ignore[attr-defined]
                before = [value for value in values if value.lineno < node.lineno or scope is not fn]
                return [((before or values)[-1], scope)]
            if node.id in scope.parameters:  # type: ignore[attr-defined]
                return [(a.value, a.caller) for a in self.objects.arguments(scope, node.id)]  # type: ignore[attr-defined]
        owner = self.type_of(node.value, fn) if isinstance(node, ast.Attribute) else None
        return [pair for cls in owner.ancestry for pair in cls.values.get(node.attr, ())] if owner else []  # type: ignore[attr-defined]

    def type_of(self, node: ast.expr, fn: Function) -> Class | None:
        """The class, of this file, whose instance an expression is."""
        return self.objects.once("type", node, fn, lambda: self._type_of(node, fn))

    def _type_of(self, node: ast.expr, fn: Function) -> Class | None:
        """The unremembered part of `type_of`."""
        classes = self.objects.classes(node, fn)
        if classes:
            return classes[0]
        if isinstance(node, ast.Attribute) and fn.cls is not None and dotted(node.value) == fn.self_name:
            return self._by_use.of_attribute(fn.cls, node.attr) if self.objects.guess is not None else None
        return None

    def callee(self, call: ast.Call, fn: Function) -> Function | None:
        """The function of this file that a call runs; of an object, its `__call__`."""
        function = self.function_named(call.func, fn)
        if function is not None or not isinstance(call.func, ast.Name | ast.Attribute):
            return function
        kind = self.type_of(call.func, fn)
        if kind is None or kind.name == short_name(call.func):
            return None
        return kind.method("__call__") or (kind.method("forward") if kind.is_model else None)

    def function_named(self, node: ast.expr, fn: Function) -> Function | None:
        """The one function of this file that an expression stands for, through aliases, `partial` and `super()`."""
        return self.objects.once("function", node, fn, lambda: self._function_named(node, fn))

    def _function_named(self, node: ast.expr, fn: Function) -> Function | None:
        """The unremembered part of `function_named`."""
        if isinstance(node, ast.Call) and node.args and short_name(node.func) in WRAPPING:
            return self.function_named(node.args[0], fn)
        functions = self.objects.functions(node, fn)
        if isinstance(node, ast.Attribute):
            owner = self.type_of(node.value, fn)
            if owner is not None and (method := owner.method(node.attr)) is not None:
                return method
            return functions[0] if len(functions) == 1 else self.objects.only_method(node, fn)
        named = [each for each in functions if isinstance(node, ast.Name) and each.name == node.id]
        return named[0] if named else functions[0] if len(functions) == 1 else None


# What wraps or shards the models of a file, so that to run them, or `backward()`, is a collective.


class Wrappers:
    """The wrappers of the models of one tree."""

    def __init__(self, module: Declarations, meeting: Meeting) -> None:
        self._module, self._meeting = module, meeting

    def average(self, fn: Function) -> bool:
        """Whether a program of this function wraps a model so that `backward()` averages over all ranks."""
        return bool(self._averaging) and self._meeting.of_one_program(self._averaging, fn, fn.line)

    @cached_property
    def _averaging(self) -> list[tuple[Function, int]]:
        """The functions that wrap a model, or are annotated to get a wrapped one, each with a line."""
        functions = self._module.functions
        named = [(c.func, fn) for fn in functions for c in fn.calls]
        named += [(each, fn) for fn in functions for each in fn.parameters.values() if each is not None]
        return [
            (fn, name.lineno)
            for name, fn in named
            if short_name(name) in catalogue.WRAPPERS and not self._module.canonical(name).startswith(catalogue.OF_RPC)
        ]

    @cached_property
    def shard(self) -> bool:
        """Whether this file spreads the parameters of a model over the ranks."""
        origins = self._module.imports.values()
        return any(origin.endswith((".FullyShardedDataParallel", ".fully_shard")) for origin in origins)

    @cached_property
    def normalise(self) -> bool:
        """Whether a model of this file keeps running means, which DistributedDataParallel makes those of rank 0."""
        used = (a.attr for fn in self._module.functions for a in fn.attributes)
        return any(name.startswith(("BatchNorm", "SyncBatchNorm")) for name in used)


# The name of an object by where it is made: `Pool._lock`, `LOCK`, `run.lock`, and `forks[]` for one of several.

_ALIKE = (ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.Await, ast.keyword)
_HOLDING = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class SiteName(NamedTuple):
    """The name of what an expression makes."""

    id: str
    several: bool  # it makes one of several under this name


def name_of_site(node: ast.expr, fn: Function) -> SiteName:
    """The name of the variable, attribute or container into which a function puts what an expression makes."""
    at: ast.AST = node
    several, suffix = False, ""
    while (up := parent(at)) is not None:
        if isinstance(up, _HOLDING):
            several, suffix = True, "[]"
        elif isinstance(up, ast.Assign | ast.AnnAssign):
            target = up.targets[0] if isinstance(up, ast.Assign) else up.target
            return _of_target(target, suffix, several, fn) or SiteName(_by_line(node, fn), True)
        elif isinstance(up, ast.Call) and at is not up.func and isinstance(up.func, ast.Attribute):
            if up.func.attr not in FILLS:
                break
            keyed = slot_of(up.args[0]) if up.func.attr == "setdefault" else None
            key = "[]" if keyed is None else f"[{keyed!r}]"
            return _of_target(up.func.value, key, keyed is None, fn) or SiteName(_by_line(node, fn), True)
        elif isinstance(up, ast.stmt) or not isinstance(up, (*_ALIKE, ast.Call, ast.withitem)):
            break
        at = up
    return SiteName(_by_line(node, fn), True)


def _by_line(node: ast.expr, fn: Function) -> str:
    return f"{fn.qualname}:{node.lineno}"


def _of_target(target: ast.expr, suffix: str, several: bool, fn: Function) -> SiteName | None:
    if isinstance(target, ast.Subscript):
        slot = slot_of(target.slice)
        return _of_target(target.value, "[]" if slot is None else f"[{slot!r}]", slot is None, fn)
    if isinstance(target, ast.Name):
        shared = fn.outer is None or target.id in fn.globals
        return SiteName(f"{target.id if shared else f'{fn.qualname}.{target.id}'}{suffix}", several)
    if isinstance(target, ast.Attribute):
        is_member = fn.cls is not None and dotted(target.value) in (fn.self_name, fn.cls.name, "cls")
        owner = fn.cls.name if is_member and fn.cls is not None else short_name(target.value)
        return SiteName(f"{owner}.{target.attr}{suffix}", several) if owner else None
    return None
