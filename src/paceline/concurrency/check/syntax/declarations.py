"""The declarations of a file: its functions and classes, and what each of them assigns, calls and accesses.

One pass over the syntax tree collects everything that the rules need, so that no rule walks the tree itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from paceline.concurrency.check.syntax.graph import Graph, TooLarge, build
from paceline.concurrency.check.syntax.tree import dotted, imported, is_constant, original, parent, short_name

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


class Resource(NamedTuple):
    """A lock, queue, event, thread or process, known by its identity."""

    id: str  # `Pool._lock`, `LOCK`, `run.lock`
    kind: str  # a value of catalogue.CONSTRUCTORS
    sure: bool  # its creation was seen; else it is only named like a lock
    non_reentrant: bool = False  # a holder that takes it again waits for itself
    one_of_several: bool = False  # one of several under the same name
    line: int = 0
    formal: Formal | None = None  # a parameter for which callers pass different ones
    bounded: bool = False  # a queue with a size, whose `put` waits while it is full


class Formal(NamedTuple):
    """A parameter of a function."""

    function: Function
    name: str


@dataclass(eq=False)
class Class:
    """A class of the file."""

    name: str
    node: ast.ClassDef
    module: Declarations
    bases: list[str]
    methods: dict[str, Function] = field(default_factory=dict)
    #: Attribute -> the values assigned to it, each with the function that assigns it.
    values: dict[str, list[tuple[ast.expr, Function]]] = field(default_factory=dict)
    properties: set[str] = field(default_factory=set)
    #: Attribute -> its annotation in the body of the class or in a method.
    annotations: dict[str, ast.expr] = field(default_factory=dict)

    @cached_property
    def ancestry(self) -> list[Class]:
        """This class and its bases in this file, nearest first."""
        classes, todo = [self], list(self.bases)
        while todo:
            base = self.module.classes.get(todo.pop(0).rpartition(".")[2])
            if base is not None and base not in classes:
                classes.append(base)
                todo += base.bases
        return classes

    def method(self, name: str) -> Function | None:
        """The method of this name, inherited ones included."""
        return next((c.methods[name] for c in self.ancestry if name in c.methods), None)

    @property
    def is_thread(self) -> bool:
        """Whether this is a class of threads: of `threading`, or by the name of a base that another file declares."""
        return any(base == "threading.Timer" or base.endswith("Thread") for c in self.ancestry for base in c.bases)

    @property
    def is_model(self) -> bool:
        """Whether this is a class of models of PyTorch, which run `forward` when they are called."""
        return any(base.rpartition(".")[2] in ("Module", "LightningModule") for c in self.ancestry for base in c.bases)

    def is_a(self, *names: str) -> bool:
        """Whether one of these canonical names is a base class."""
        return any(base in names for c in self.ancestry for base in c.bases)


@dataclass(eq=False)
class Function:
    """A function, a lambda, or the body of the module."""

    name: str
    qualname: str
    node: Scope
    cls: Class | None = None
    outer: Function | None = None
    nested: dict[str, Function] = field(default_factory=dict)
    parameters: dict[str, ast.expr | None] = field(default_factory=dict)
    rest: str = ""  # the parameter that takes further arguments: `*stages`
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
    names: list[ast.Name] = field(default_factory=list)
    stores: list[ast.Name] = field(default_factory=list)
    bound: dict[str, ast.expr] = field(default_factory=dict)
    #: Name -> what a `for` loop or comprehension that binds it iterates over.
    looped: dict[str, ast.expr] = field(default_factory=dict)
    #: What this function, rather than the file, imports.
    imported: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    yields: list[ast.Yield | ast.YieldFrom] = field(default_factory=list)
    memo: dict[str, Resource | None] = field(default_factory=dict)

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 1)

    @property
    def generator(self) -> bool:
        return bool(self.yields)

    @property
    def asynchronous(self) -> bool:
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def only_awaited(self) -> bool:
        """Whether this is a coroutine of which nothing runs unless its caller awaits it: a decorator may start it."""
        decorators = {short_name(d) for d in getattr(self.node, "decorator_list", ())}
        certain = not self.name.startswith("__") and not isinstance(parent(self.node), ast.If)
        return self.asynchronous and certain and not self.generator and decorators <= _TRANSPARENT

    @cached_property
    def self_name(self) -> str:
        """The name of this method's first parameter; a function nested in a method uses the method's."""
        if self.cls is None:
            return ""
        if self.outer is not None and self.outer.cls is self.cls and self.cls.methods.get(self.name) is not self:
            return self.outer.self_name
        return next(iter(self.parameters), "")

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The statements; a lambda's expression as one statement."""
        if isinstance(self.node, ast.Lambda):
            value = ast.Expr(self.node.body)
            return [ast.copy_location(value, self.node.body)]
        return self.node.body

    @cached_property
    def graph(self) -> Graph | None:
        """The control-flow graph; None when it would be too large."""
        try:
            return build(self.body, self.line)
        except (TooLarge, RecursionError):
            return None

    def values_of(self, name: str) -> list[ast.expr]:
        """What the statements of this function assign to a variable, in their order."""
        return [value for target, value in self.assigns if isinstance(target, ast.Name) and target.id == name]

    def default(self, name: str) -> ast.expr | None:
        """The default of a parameter."""
        if isinstance(self.node, ast.Module):
            return None
        arguments = self.node.args
        placed = zip([*arguments.posonlyargs, *arguments.args][::-1], arguments.defaults[::-1], strict=False)
        pairs = [*placed, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        return next((default for argument, default in pairs if argument.arg == name), None)

    def decorated(self, *names: str) -> bool:
        """Whether a decorator has one of these names, called or not."""
        return any(
            short_name(d.func if isinstance(d, ast.Call) else d) in names
            for d in getattr(self.node, "decorator_list", ())
        )

    def scopes(self) -> Iterator[Function]:
        """This function and those around it, innermost first."""
        scope: Function | None = self
        while scope is not None:
            yield scope
            scope = scope.outer


class Declarations:
    """The functions and classes of one file, collected in one pass."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports: dict[str, str] = {}
        self.classes: dict[str, Class] = {}
        self.functions: list[Function] = []
        self.properties: set[str] = set()  # their names, of all classes
        self.top = Function("<module>", "<module>", tree)
        self._by_node: dict[int, Function] = {}
        #: By the identity of a node, which is stored too: a node that was collected may leave its identity to another.
        self._canonical_names: dict[int, tuple[ast.AST, str]] = {}
        self._visit_body(tree, self.top, None)
        self._canonical_names.clear()  # an import further down in the file may bind a name that was resolved before
        self.functions.append(self.top)

    # -- the one pass

    def _visit_body(self, node: ast.AST, fn: Function, cls: Class | None) -> None:
        for child in ast.iter_child_nodes(node):
            self._visit(child, node, fn, cls)

    def _visit(self, node: ast.AST, up: ast.AST, fn: Function, cls: Class | None) -> None:
        """Record one node and visit its children; `up` is the node around it."""
        kind = type(node)
        if kind in _LEAVES:
            return
        node.up = up  # type: ignore[attr-defined]
        if kind is ast.Name:
            fn.names.append(node)  # type: ignore[arg-type]
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

    def _scope(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, outer: Function, cls: Class | None
    ) -> None:
        """Declare a function or lambda and visit its body."""
        name = getattr(node, "name", "<lambda>")
        owner = cls or outer.cls
        prefix = f"{cls.name}." if cls is not None else f"{outer.qualname}." if outer is not self.top else ""
        fn = Function(name, prefix + name, node, owner, outer)
        self.functions.append(fn)
        self._by_node[id(node)] = fn
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            fn.parameters[argument.arg] = argument.annotation
        fn.rest = arguments.vararg.arg if arguments.vararg is not None else ""
        for special in (arguments.vararg, arguments.kwarg):
            if special is not None:
                fn.parameters[special.arg] = None
        if cls is not None:
            method = cls.methods.get(name)
            if method is None or not fn.decorated("setter", "deleter", "overload"):
                cls.methods[name] = fn
            if fn.decorated("property", "cached_property"):
                cls.properties.add(name)
                self.properties.add(name)
        elif name != "<lambda>":
            outer.nested[name] = fn
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            self._visit(default, node, outer, None)
        for decorator in getattr(node, "decorator_list", ()):
            self._visit(decorator, node, outer, None)
        body = node.body if isinstance(node.body, list) else [node.body]
        for child in body:
            self._visit(child, node, fn, None)

    def _class(self, node: ast.ClassDef, fn: Function) -> None:
        """Declare a class and visit its body."""
        bases = [self.canonical(base) for base in node.bases]
        cls = Class(node.name, node, self, bases)
        self.classes.setdefault(node.name, cls)
        for expression in (*node.bases, *node.decorator_list):
            self._visit(expression, node, fn, None)
        for child in node.body:
            self._visit(child, node, fn, cls)

    def _note_import(self, node: ast.Import | ast.ImportFrom, fn: Function, cls: Class | None) -> None:
        names = imported(node)
        self.imports.update(names)
        if fn is not self.top:
            fn.imported.update(names)

    def _note_assign(self, node: ast.Assign, fn: Function, cls: Class | None) -> None:
        for target in node.targets:
            pairs = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            if pairs and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
                for one, value in zip(target.elts, node.value.elts, strict=True):  # type: ignore[attr-defined]
                    self._bind(one, value, fn, cls)
                continue
            if (
                isinstance(target, ast.Tuple)
                and isinstance(node.value, ast.Call)
                and short_name(node.value.func) == "Pipe"
            ):
                for one in target.elts:
                    self._bind(one, node.value, fn, cls)
                continue
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call) and cls is None:
                fn.looped |= {n.id: node.value for n in target.elts if isinstance(n, ast.Name)}
            self._bind(target, node.value, fn, cls)

    def _note_annotated(self, node: ast.AnnAssign, fn: Function, cls: Class | None) -> None:
        if node.value is not None:
            self._bind(node.target, node.value, fn, cls)
        target, owner = node.target, cls or fn.cls
        if owner is not None and isinstance(target, ast.Name if cls is not None else ast.Attribute):
            owner.annotations.setdefault(short_name(target), node.annotation)

    def _note_loop(self, node: ast.For | ast.AsyncFor | ast.comprehension, fn: Function, cls: Class | None) -> None:
        fn.loops.append(node)
        target, over = node.target, node.iter
        if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(over, ast.Call):
            name = short_name(over.func)
            if name == "enumerate" and over.args:
                target, over = target.elts[1], over.args[0]
            elif name == "items" and isinstance(over.func, ast.Attribute):
                target, over = target.elts[1], over.func.value
        if isinstance(target, ast.Name):
            fn.looped[target.id] = over

    def _note_named(self, node: ast.NamedExpr, fn: Function, cls: Class | None) -> None:
        self._bind(node.target, node.value, fn, cls)

    def _note_with(self, node: ast.With | ast.AsyncWith, fn: Function, cls: Class | None) -> None:
        fn.withs.append(node)
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name | ast.Attribute):
                self._bind(item.optional_vars, item.context_expr, fn, cls)

    def _bind(self, target: ast.expr, value: ast.expr, fn: Function, cls: Class | None) -> None:
        """Record an assignment of a value to a name or to an attribute of the own class."""
        fn.assigns.append((target, value))
        if isinstance(target, ast.Name):
            if cls is not None:
                cls.values.setdefault(target.id, []).append((value, fn))
            elif not (is_constant(value, None) and target.id in fn.bound):
                fn.bound[target.id] = value
        elif (
            isinstance(target, ast.Attribute)
            and fn.cls is not None
            and dotted(target.value) in (fn.self_name, fn.cls.name, "cls")
        ):
            fn.cls.values.setdefault(target.attr, []).append((value, fn))

    # -- names

    def canonical(self, node: ast.AST) -> str:
        """The dotted name of an expression with its imports resolved; empty when it is not a name."""
        entry = self._canonical_names.get(id(node))
        if entry is None:
            entry = self._canonical_names[id(node)] = node, self._resolved(dotted(node))
        return entry[1]

    def _resolved(self, text: str) -> str:
        if not text:
            return ""
        head, dot, rest = text.partition(".")
        call = head.partition("(")[0].partition("[")[0]
        origin = self.imports.get(call)
        if origin is None:
            return original(text)
        return original(origin + head[len(call) :] + dot + rest)

    @cached_property
    def calls(self) -> list[tuple[ast.Call, Function]]:
        """All calls, each with the function that it is in."""
        return [(call, fn) for fn in self.functions for call in fn.calls]

    def function_of(self, node: ast.AST) -> Function | None:
        """The function that a syntax node defines."""
        return self._by_node.get(id(node))


_TRANSPARENT = {"abstractmethod", "override", "staticmethod", "classmethod"}
# Nodes that are not visited. All trees share one `ast.Add`, one `ast.Load` and so on: if it knew the node around it, it
# would keep the tree alive in which it was seen last.
_SHARED = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)
_LEAVES = {ast.Constant, *(kind for base in _SHARED for kind in base.__subclasses__())}
_SCOPES = {ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda}


def _into(name: str):  # type: ignore[no-untyped-def]
    """A note that appends the node to one of the function's lists."""

    def note(module: Declarations, node: ast.AST, fn: Function, cls: Class | None) -> None:
        getattr(fn, name).append(node)

    return note


_NOTES = {
    ast.Call: _into("calls"),
    ast.Attribute: _into("attributes"),
    ast.Subscript: _into("subscripts"),
    ast.AugAssign: _into("augmented"),
    ast.If: _into("tests"),
    ast.While: lambda m, n, f, c: (f.tests.append(n), f.loops.append(n)),
    ast.For: Declarations._note_loop,
    ast.AsyncFor: Declarations._note_loop,
    ast.comprehension: Declarations._note_loop,
    ast.Await: _into("awaits"),
    ast.Return: _into("returns"),
    ast.Yield: _into("yields"),
    ast.YieldFrom: _into("yields"),
    ast.Global: lambda m, n, f, c: f.globals.update(n.names),
    ast.Nonlocal: lambda m, n, f, c: f.nonlocals.update(n.names),
    ast.Import: Declarations._note_import,
    ast.ImportFrom: Declarations._note_import,
    ast.Assign: Declarations._note_assign,
    ast.AnnAssign: Declarations._note_annotated,
    ast.NamedExpr: Declarations._note_named,
    ast.With: Declarations._note_with,
    ast.AsyncWith: Declarations._note_with,
}
