"""What a file declares: its functions, classes, names, and which of them are locks, queues, threads.

One pass over the syntax tree collects everything that the rules ask for, so that no rule walks the tree itself. A
resource is known by identity: `Pool._lock` is the attribute of a class, `LOCK` a global, `run.lock` a local of `run`.
What was not seen being made, but is called a lock, is one that is not `sure`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from paceline.check import catalogue
from paceline.check.graph import Graph, TooLarge, build
from paceline.check.names import dotted, imported, is_constant, keyword, last, same

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
ALIASES = 4  # how far a name is followed through assignments


class Resource(NamedTuple):
    id: str
    kind: str
    sure: bool  # it was seen being made
    once: bool = False  # its holder waits for itself when it takes it again
    many: bool = False  # one of several under the same name
    line: int = 0


@dataclass(eq=False)
class Class:
    name: str
    node: ast.ClassDef
    module: Module
    bases: list[str]
    methods: dict[str, Function] = field(default_factory=dict)
    values: dict[str, list[tuple[ast.expr, Function]]] = field(default_factory=dict)
    properties: set[str] = field(default_factory=set)

    @cached_property
    def ancestry(self) -> list[Class]:
        """This class and its bases in this file, nearest first."""
        found, todo = [self], list(self.bases)
        while todo:
            base = self.module.classes.get(todo.pop(0).rpartition(".")[2])
            if base is not None and base not in found:
                found.append(base)
                todo += base.bases
        return found

    def method(self, name: str) -> Function | None:
        return next((c.methods[name] for c in self.ancestry if name in c.methods), None)

    def is_a(self, *names: str) -> bool:
        return any(base in names for c in self.ancestry for base in c.bases)


@dataclass(eq=False)
class Function:
    """A function, a lambda, or the body of the module."""

    name: str
    qualname: str
    node: Scope
    module: Module
    cls: Class | None = None
    outer: Function | None = None
    nested: dict[str, Function] = field(default_factory=dict)
    parameters: dict[str, ast.expr | None] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    assigns: list[tuple[ast.expr, ast.expr]] = field(default_factory=list)
    augmented: list[ast.AugAssign] = field(default_factory=list)
    attributes: list[ast.Attribute] = field(default_factory=list)
    subscripts: list[ast.Subscript] = field(default_factory=list)
    tests: list[ast.If | ast.While] = field(default_factory=list)
    loops: list[ast.For | ast.AsyncFor | ast.While | ast.comprehension] = field(default_factory=list)
    withs: list[ast.With | ast.AsyncWith] = field(default_factory=list)
    awaits: list[ast.Await] = field(default_factory=list)
    returns: list[ast.Return] = field(default_factory=list)
    stores: list[ast.Name] = field(default_factory=list)
    bound: dict[str, ast.expr] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    generator: bool = False
    memo: dict[str, Resource | None] = field(default_factory=dict)

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 1)

    @property
    def asynchronous(self) -> bool:
        return isinstance(self.node, ast.AsyncFunctionDef)

    @cached_property
    def me(self) -> str:
        """What this method calls its object; a function inside a method sees the method's."""
        if self.cls is None:
            return ""
        if self.outer is not None and self.outer.cls is self.cls and self.cls.methods.get(self.name) is not self:
            return self.outer.me
        return next(iter(self.parameters), "")

    @cached_property
    def body(self) -> list[ast.stmt]:
        if isinstance(self.node, ast.Lambda):
            value = ast.Expr(self.node.body)
            return [ast.copy_location(value, self.node.body)]
        return self.node.body

    @cached_property
    def graph(self) -> Graph | None:
        try:
            return build(self.body, self.line)
        except (TooLarge, RecursionError):
            return None

    def decorated(self, *names: str) -> bool:
        return any(
            last(d.func if isinstance(d, ast.Call) else d) in names for d in getattr(self.node, "decorator_list", ())
        )

    def scopes(self) -> Iterator[Function]:
        scope: Function | None = self
        while scope is not None:
            yield scope
            scope = scope.outer


class Module:
    def __init__(self, tree: ast.Module) -> None:
        self.imports: dict[str, str] = {}
        self.classes: dict[str, Class] = {}
        self.functions: list[Function] = []
        self.top = Function("<module>", "<module>", tree, self)
        self._by_node: dict[int, Function] = {}
        self._visit_body(tree, self.top, None)
        self.functions.append(self.top)

    # -- the one pass

    def _visit_body(self, node: ast.AST, fn: Function, cls: Class | None) -> None:
        for child in ast.iter_child_nodes(node):
            self._visit(child, node, fn, cls)

    def _visit(self, node: ast.AST, up: ast.AST, fn: Function, cls: Class | None) -> None:
        kind = type(node)
        if kind is ast.Constant or kind is ast.Load or kind is ast.Store:
            return
        node.up = up  # type: ignore[attr-defined]
        if kind is ast.Name:
            if type(node.ctx) is not ast.Load:  # type: ignore[attr-defined]
                fn.stores.append(node)  # type: ignore[arg-type]
            return
        if kind in _SCOPES:
            self._scope(node, fn, cls)  # type: ignore[arg-type]
            return
        if kind is ast.ClassDef:
            self._class(node, fn)  # type: ignore[arg-type]
            return
        for name in node._fields:
            value = getattr(node, name, None)
            if type(value) is list:
                for item in value:
                    if isinstance(item, ast.AST):
                        self._visit(item, node, fn, cls)
            elif isinstance(value, ast.AST):
                self._visit(value, node, fn, cls)
        note = _NOTES.get(kind)
        if note is not None:
            note(self, node, fn, cls)

    def _scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, outer: Function, cls: Class | None) -> None:
        name = getattr(node, "name", "<lambda>")
        owner = cls or outer.cls
        prefix = f"{owner.name}." if cls else f"{outer.qualname}." if outer is not self.top else ""
        fn = Function(name, prefix + name, node, self, owner, outer)
        self.functions.append(fn)
        self._by_node[id(node)] = fn
        given = node.args
        for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs):
            fn.parameters[argument.arg] = argument.annotation
        for special in (given.vararg, given.kwarg):
            if special is not None:
                fn.parameters[special.arg] = None
        if cls is not None:
            known = cls.methods.get(name)
            if known is None or not fn.decorated("setter", "deleter", "overload"):
                cls.methods[name] = fn
            if fn.decorated("property", "cached_property"):
                cls.properties.add(name)
        elif name != "<lambda>":
            outer.nested[name] = fn
        for default in (*given.defaults, *(d for d in given.kw_defaults if d is not None)):
            self._visit(default, node, outer, None)
        for decorator in getattr(node, "decorator_list", ()):
            self._visit(decorator, node, outer, None)
        body = node.body if isinstance(node.body, list) else [node.body]
        for child in body:
            self._visit(child, node, fn, None)

    def _class(self, node: ast.ClassDef, fn: Function) -> None:
        bases = [self.canonical(base) for base in node.bases]
        made = Class(node.name, node, self, bases)
        self.classes.setdefault(node.name, made)
        for child in (*node.bases, *node.decorator_list):
            self._visit(child, node, fn, None)
        for child in node.body:
            self._visit(child, node, fn, made)

    def _note_import(self, node: ast.Import | ast.ImportFrom, fn: Function, cls: Class | None) -> None:
        self.imports.update(imported(node))

    def _note_assign(self, node: ast.Assign, fn: Function, cls: Class | None) -> None:
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                if len(target.elts) == len(node.value.elts):
                    for one, value in zip(target.elts, node.value.elts):
                        self._bind(one, value, fn, cls)
                    continue
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call) and last(node.value.func) == "Pipe":
                for one in target.elts:
                    self._bind(one, node.value, fn, cls)
                continue
            self._bind(target, node.value, fn, cls)

    def _note_annotated(self, node: ast.AnnAssign, fn: Function, cls: Class | None) -> None:
        if node.value is not None:
            self._bind(node.target, node.value, fn, cls)

    def _note_named(self, node: ast.NamedExpr, fn: Function, cls: Class | None) -> None:
        self._bind(node.target, node.value, fn, cls)

    def _note_with(self, node: ast.With | ast.AsyncWith, fn: Function, cls: Class | None) -> None:
        fn.withs.append(node)
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name | ast.Attribute):
                self._bind(item.optional_vars, item.context_expr, fn, cls)

    def _bind(self, target: ast.expr, value: ast.expr, fn: Function, cls: Class | None) -> None:
        fn.assigns.append((target, value))
        if isinstance(target, ast.Name):
            if cls is not None:
                cls.values.setdefault(target.id, []).append((value, fn))
            elif not (is_constant(value, None) and target.id in fn.bound):
                fn.bound[target.id] = value
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and fn.cls is not None:
            if target.value.id in (fn.me, fn.cls.name, "cls"):
                fn.cls.values.setdefault(target.attr, []).append((value, fn))

    # -- names

    def canonical(self, node: ast.AST) -> str:
        text = dotted(node)
        if not text:
            return ""
        head, dot, rest = text.partition(".")
        call = head.partition("(")[0].partition("[")[0]
        origin = self.imports.get(call)
        if origin is None:
            return same(text)
        return same(origin + head[len(call) :] + dot + rest)

    def function_of(self, node: ast.AST) -> Function | None:
        return self._by_node.get(id(node))

    # -- resources

    def made(self, value: ast.expr, fn: Function) -> tuple[str, ast.Call] | None:
        """The kind of thing that this expression makes, and the call that makes it."""
        if isinstance(value, ast.IfExp):
            return self.made(value.body, fn) or self.made(value.orelse, fn)
        if isinstance(value, ast.BoolOp):
            return next((m for v in value.values if (m := self.made(v, fn))), None)
        if not isinstance(value, ast.Call):
            return None
        kind = self.kind_made(value, fn)
        return None if kind is None else (kind, value)

    def kind_made(self, call: ast.Call, fn: Function) -> str | None:
        name = self.canonical(call.func)
        kind = catalogue.MAKES.get(name)
        if kind is not None:
            return kind
        words = name.split(".")
        if words[-1] == "field":  # dataclasses
            factory = keyword(call, "default_factory")
            return None if factory is None else catalogue.MAKES.get(self.canonical(factory))
        if words[-1] == "submit" and len(words) > 1:
            return "Future"
        if words[-1] not in _CONTEXT_MAKES or len(words) < 2:
            short = ".".join(words[-2:])
            return catalogue.MAKES.get(short) if len(words) > 2 else None
        if words[-2] == "get_context()" or (len(words) == 2 and self._is_context(words[0], fn)):
            return catalogue.MAKES.get("multiprocessing." + words[-1])
        return catalogue.MAKES.get(".".join(words[-2:]))

    def _is_context(self, name: str, fn: Function) -> bool:
        for scope in fn.scopes():
            value = scope.bound.get(name)
            if isinstance(value, ast.Call):
                return last(value.func) == "get_context"
        return False

    def resource(self, node: ast.expr, fn: Function, depth: int = 0) -> Resource | None:
        """The lock, queue, thread or other resource that an expression names; None when it is not one."""
        text = dotted(node)
        if not text or depth > ALIASES:
            return None
        if text in fn.memo:
            return fn.memo[text]
        fn.memo[text] = None
        found = self._resource(node, text, fn, depth)
        fn.memo[text] = found
        return found

    def _resource(self, node: ast.expr, text: str, fn: Function, depth: int) -> Resource | None:
        if isinstance(node, ast.Name):
            return self._of_name(node.id, fn, depth)
        if isinstance(node, ast.Attribute):
            owner = self.type_of(node.value, fn)
            if owner is not None:
                return self.of_class(owner, node.attr) or _guess(f"{owner.name}.{node.attr}", node.attr)
            only = self._only_owner(node.attr)
            if only is not None and not isinstance(node.value, ast.Call):
                return self.of_class(only, node.attr)
            scope = fn.cls.name + ":" if fn.cls is not None and text.split(".")[0] == fn.me else ""
            return _guess(scope + self.canonical(node), node.attr)
        if isinstance(node, ast.Subscript):
            name = last(node.value)
            found = _guess((fn.cls.name + ":" if fn.cls else "") + text, name)
            return found and found._replace(many=True)
        if isinstance(node, ast.Call):
            made = self.made(node, fn)
            if made is not None:
                return Resource(f"{fn.qualname}:{node.lineno}", made[0], True, False, True, node.lineno)
            if self.callee(node, fn) is None:
                found = _guess((fn.cls.name + ":" if fn.cls else "") + text, last(node.func))
                return found and found._replace(many=True)
        return None

    def _of_name(self, name: str, fn: Function, depth: int) -> Resource | None:
        for scope in fn.scopes():
            value = scope.bound.get(name)
            if name in fn.globals and scope is not self.top:
                continue
            if value is not None:
                made = self.made(value, scope)
                where = name if scope is self.top else f"{scope.qualname}.{name}"
                if made is not None:
                    return self._new(where, made, scope)
                if isinstance(value, ast.Name | ast.Attribute) and dotted(value) != name:
                    return self.resource(value, scope, depth + 1) or _guess(where, name)
                return _guess(where, name)
            if name in scope.parameters:
                annotation = scope.parameters[name]
                kind = catalogue.MAKES.get(self.canonical(annotation)) if annotation is not None else None
                where = f"{scope.qualname}.{name}"
                return Resource(where, kind, True, kind in catalogue.ONCE) if kind else _guess(where, name)
        origin = self.imports.get(name)
        return _guess(origin, name) if origin is not None else None

    def of_class(self, owner: Class, attribute: str) -> Resource | None:
        for cls in owner.ancestry:
            values = cls.values.get(attribute, ())
            for value, fn in values:
                made = self.made(value, fn)
                if made is not None:
                    return self._new(f"{cls.name}.{attribute}", made, fn)
            for value, fn in values:
                if isinstance(value, ast.Attribute | ast.Name) and dotted(value) != f"{fn.me}.{attribute}":
                    found = self.resource(value, fn, 1)
                    if found is not None and not isinstance(value, ast.Name):
                        return found
                    if found is not None:
                        return found._replace(id=f"{cls.name}.{attribute}")
        return None

    def _new(self, where: str, made: tuple[str, ast.Call], fn: Function) -> Resource:
        kind, call = made
        if kind in ("Condition", "AsyncCondition") and (inner := keyword(call, "lock", 0)) is not None:
            shared = self.resource(inner, fn, 1)
            if shared is not None:
                return Resource(shared.id, kind, shared.sure, shared.once, shared.many, shared.line)
            lock = self.made(inner, fn)
            return Resource(where, kind, True, lock is not None and lock[0] in catalogue.ONCE, False, call.lineno)
        return Resource(where, kind, True, kind in catalogue.ONCE or kind == "AsyncCondition", False, call.lineno)

    @cached_property
    def _owners(self) -> dict[str, list[Class]]:
        owners: dict[str, list[Class]] = {}
        for cls in self.classes.values():
            for attribute, values in cls.values.items():
                if any(self.made(value, fn) for value, fn in values):
                    owners.setdefault(attribute, []).append(cls)
        return owners

    def _only_owner(self, attribute: str) -> Class | None:
        owners = self._owners.get(attribute, ())
        return owners[0] if len(owners) == 1 else None

    # -- types and calls

    def type_of(self, node: ast.expr, fn: Function, depth: int = 0) -> Class | None:
        """The class of this file that an expression is an object of."""
        if depth > ALIASES:
            return None
        if isinstance(node, ast.Name):
            if fn.cls is not None and node.id in (fn.me, "cls", fn.cls.name):
                return fn.cls
            if node.id in self.classes:
                return self.classes[node.id]
            for scope in fn.scopes():
                if node.id in scope.bound:
                    return self.type_of_value(scope.bound[node.id], scope, depth + 1)
                if node.id in scope.parameters:
                    annotation = scope.parameters[node.id]
                    text = annotation.value if isinstance(annotation, ast.Constant) else annotation and last(annotation)
                    return self.classes.get(text) if isinstance(text, str) else None
        if isinstance(node, ast.Attribute):
            owner = self.type_of(node.value, fn, depth + 1)
            if owner is not None:
                for cls in owner.ancestry:
                    for value, scope in cls.values.get(node.attr, ()):
                        found = self.type_of_value(value, scope, depth + 1)
                        if found is not None:
                            return found
        return None

    def type_of_value(self, value: ast.expr, fn: Function, depth: int = 0) -> Class | None:
        if isinstance(value, ast.Call):
            return self.classes.get(last(value.func)) if isinstance(value.func, ast.Name | ast.Attribute) else None
        if isinstance(value, ast.Name | ast.Attribute):
            return self.type_of(value, fn, depth + 1)
        return None

    def callee(self, call: ast.Call, fn: Function) -> Function | None:
        """The function of this file that a call runs."""
        return self.function_named(call.func, fn)

    def function_named(self, node: ast.expr, fn: Function, depth: int = 0) -> Function | None:
        if isinstance(node, ast.Lambda):
            return self.function_of(node)
        if isinstance(node, ast.Call) and last(node.func) in ("partial", "WeakMethod", "ref", "wraps") and node.args:
            return self.function_named(node.args[0], fn, depth + 1)
        if isinstance(node, ast.Name):
            for scope in fn.scopes():
                if node.id in scope.nested:
                    return scope.nested[node.id]
                if node.id in scope.bound and depth < ALIASES and scope is not self.top:
                    value = scope.bound[node.id]
                    alias = isinstance(value, ast.Name | ast.Attribute | ast.Lambda) and dotted(value) != node.id
                    return self.function_named(value, scope, depth + 1) if alias else None
                if node.id in scope.parameters:
                    return None
            cls = self.classes.get(node.id)
            return cls.method("__init__") if cls is not None else None
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Call) and last(node.value.func) == "super" and fn.cls is not None:
                return next((c.methods[node.attr] for c in fn.cls.ancestry[1:] if node.attr in c.methods), None)
            owner = self.type_of(node.value, fn)
            return owner.method(node.attr) if owner is not None else None
        return None


def _guess(where: str, name: str) -> Resource | None:
    """A lock by its name alone."""
    low = name.lower().rstrip("s")
    if low.endswith(catalogue.CONDITION_WORDS) or low == "cond" or low == "cv":
        return Resource(where, "Condition", False)
    if low.endswith(catalogue.LOCK_WORDS) and not low.endswith(_NOT_LOCKS):
        return Resource(where, "Lock", False)
    return None


_NOT_LOCKS = ("block", "clock", "unlock", "deadlock", "trylock", "try_lock", "flock", "has_lock", "is_lock", "interlock")
_CONTEXT_MAKES = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Process", "Queue",
                  "JoinableQueue", "SimpleQueue", "Pool", "Barrier", "Pipe"}  # fmt: skip
_SCOPES = {ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda}


def _into(name: str):  # type: ignore[no-untyped-def]
    def note(module: Module, node: ast.AST, fn: Function, cls: Class | None) -> None:
        getattr(fn, name).append(node)

    return note


def _yields(module: Module, node: ast.AST, fn: Function, cls: Class | None) -> None:
    fn.generator = True


def _globals(module: Module, node: ast.Global, fn: Function, cls: Class | None) -> None:
    fn.globals.update(node.names)


_NOTES = {
    ast.Call: _into("calls"),
    ast.Attribute: _into("attributes"),
    ast.Subscript: _into("subscripts"),
    ast.AugAssign: _into("augmented"),
    ast.If: _into("tests"),
    ast.While: lambda m, n, f, c: (f.tests.append(n), f.loops.append(n)),
    ast.For: _into("loops"),
    ast.AsyncFor: _into("loops"),
    ast.comprehension: _into("loops"),
    ast.Await: _into("awaits"),
    ast.Return: _into("returns"),
    ast.Yield: _yields,
    ast.YieldFrom: _yields,
    ast.Global: _globals,
    ast.Import: Module._note_import,
    ast.ImportFrom: Module._note_import,
    ast.Assign: Module._note_assign,
    ast.AnnAssign: Module._note_annotated,
    ast.NamedExpr: Module._note_named,
    ast.With: Module._note_with,
    ast.AsyncWith: Module._note_with,
}
