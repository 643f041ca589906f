"""Rewrites a syntax tree: before each access of an attribute, an item, an element or a shared variable, a call.

    self.n += 1             __explore__.at(self, "n", 12, "both", 5).n += __explore__.store(1, 5)
    if key in cache:        if key in __explore__.whole(cache, 7, "read"):
    cache[key] = value      __explore__.hold(cache, 3)[__explore__.item(key, 8, 3, "write")] = value
    items.append(x)         __explore__.indirect(__explore__.at(items, "append", 9, "read").append)(x)
    len(items)              __explore__.indirect(len)(items)
    for x in items:         for x in __explore__.elements(items, 10):
    total = total + 1       total = __explore__.stored(... + 1, "total", "", 11, "update")

The access itself stays as it is, so that descriptors, private names and
`super()` mean what they did. The calls keep Python's order of evaluation.
"""

from __future__ import annotations

import ast
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from paceline.concurrency.explore.finding import MARK
from paceline.concurrency.explore.interpose.files import CONTENTS
from paceline.concurrency.explore.rewriting.points import READERS

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: Functions that access what their arguments say, and methods of containers: they announce that when they are called.
INDIRECT = (
    {"getattr", "setattr", "delattr", "hasattr", "attrgetter", "__getattribute__", "__setattr__", "__delattr__"}
    | {"getitem", "setitem", "delitem", "itemgetter", "__getitem__", "__setitem__", "__delitem__"}
    | {"vars", "globals", "exec", "eval", "replace", "asdict", "astuple", "copy", "deepcopy", "shuffle"}
    | {"heappush", "heappop", "heapreplace", "heappushpop", "insort", "insort_left", "insort_right"}
)
METHODS = CONTENTS | {
    name for kind in (list, dict, set, deque, Counter) for name in dir(kind) if not name.startswith("__")
}


def rewritten(source: str | bytes, file: str) -> ast.Module:
    tree = ast.parse(source, file)
    _Accesses(SharedNames(tree)).visit(tree)
    return ast.fix_missing_locations(tree)


class _Accesses(ast.NodeTransformer):
    """The rewriting, with the functions around the present node."""

    def __init__(self, shared: SharedNames) -> None:
        self._shared = shared
        self._around: list[Scope] = []
        self._numbers = 0
        self._sources: dict[str, set[str]] = {}  # of a local variable: the shared data that its value comes from

    # ---- scopes

    def _function(self, node: Any) -> Any:
        node.args.defaults = [self.visit(each) for each in node.args.defaults]
        self._around.append(node)
        outer, self._sources = self._sources, {}
        node.body = self.visit(node.body) if isinstance(node, ast.Lambda) else self._statements(node.body)
        self._sources = outer
        self._around.pop()
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function  # noqa: N815

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return self.generic_visit(ast.Module(body, [])).body  # type: ignore[attr-defined, no-any-return]

    def visit_match_case(self, node: ast.match_case) -> Any:
        node.guard = self.visit(node.guard) if node.guard is not None else None
        node.body = self._statements(node.body)
        return node  # a pattern may hold no calls

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.value = self.visit(node.value) if node.value is not None else None
        if node.value is not None and not isinstance(node.target, ast.Name):
            node.target = self.visit(node.target)
        return node

    # ---- attributes and items

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.value = self.visit(node.value)
        mode = "read" if isinstance(node.ctx, ast.Load) else "write"
        node.value = self._call("at", node, node.value, node.attr, node.lineno, mode)
        return self._call("indirect", node, node) if node.attr in INDIRECT | METHODS and mode == "read" else node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.slice, ast.Slice) or any(isinstance(each, ast.Slice) for each in ast.walk(node.slice)):
            node.slice = self.visit(node.slice)
            node.value = self._call("whole", node, self.visit(node.value), node.lineno, _mode(node.ctx))
            return node
        container, key = self.visit(node.value), self.visit(node.slice)
        self._numbers += 1
        node.value = self._call("hold", node, container, self._numbers)
        node.slice = self._call("item", node, key, node.lineno, self._numbers, _mode(node.ctx))
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        is_reader = isinstance(node.func, ast.Name) and node.func.id in READERS
        self.generic_visit(node)
        node.func = self._call("indirect", node.func, node.func) if is_reader else node.func
        return node

    # ---- elements

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        if not getattr(node, "is_async", False):
            node.iter = self._call("elements", node.iter, node.iter, node.iter.lineno)
        return node

    visit_comprehension = visit_For

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        for at, operator in enumerate(node.ops):
            is_equality = isinstance(operator, ast.Eq | ast.NotEq)
            for side in (at, at + 1) if is_equality else (at + 1,) if isinstance(operator, ast.In | ast.NotIn) else ():
                sides[side] = self._whole(sides[side])
        node.left, *node.comparators = sides
        return node

    def _whole(self, node: ast.expr) -> ast.expr:
        """Let an expression read all elements, if it can be a container that threads share."""
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
            return self._call("whole", node, node, node.lineno, "read")
        return node

    def _test(self, node: Any) -> Any:
        """Let a test of a container, as in `while self.items:`, read it."""
        self.generic_visit(node)
        node.test = self._truth(node.test)
        return node

    visit_If = visit_While = visit_IfExp = visit_Assert = _test  # noqa: N815

    def _truth(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = self._truth(test.operand)
        elif isinstance(test, ast.BoolOp):
            test.values = [self._truth(each) for each in test.values]
        return self._whole(test)

    # ---- variables

    def visit_Name(self, node: ast.Name) -> Any:
        owner = self._shared.owner(node.id, self._around) if isinstance(node.ctx, ast.Load) else None
        if owner is None:
            is_indirect = isinstance(node.ctx, ast.Load) and node.id in self._shared.indirect
            return self._call("indirect", node, node) if is_indirect else node
        before = self._call("name", node, node.id, owner, node.lineno, "read")  # which returns None
        return ast.copy_location(ast.BoolOp(ast.Or(), [before, node]), node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Let a value that comes from the target, also by a variable, be an update of what was read."""
        sources = self._sources_of(node.value)
        node.value = self.visit(node.value)
        for target in node.targets:
            mode = "update" if ast.unparse(target) in sources else "write"
            if isinstance(target, ast.Name):
                node.value = self._stored(target, node.value, mode)
                self._sources[target.id] = sources
            self.visit(target)
            call = getattr(target, "value" if isinstance(target, ast.Attribute) else "slice", None)
            if isinstance(call, ast.Call) and mode == "update":
                call.args[-1] = ast.copy_location(ast.Constant(mode), call)
        return node

    def _sources_of(self, value: ast.expr) -> set[str]:
        """Return the attributes, items and variables that an expression reads, as they are written."""
        sources: set[str] = set()
        for node in ast.walk(value):
            if isinstance(node, ast.Attribute | ast.Subscript | ast.Name):
                sources |= {ast.unparse(node), *self._sources.get(getattr(node, "id", ""), ())}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                sources |= {f"{ast.unparse(node.func.value)}[{ast.unparse(each)}]" for each in node.args[:1]}
        return sources

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """Split `target += value` into a read, the value, and a write, between which other threads can come."""
        node.value, target = self.visit(node.value), node.target
        if isinstance(target, ast.Name):
            owner = self._shared.owner(target.id, self._around)
            if owner is None:
                return node
            before = ast.Expr(self._call("name", node, target.id, owner, node.lineno, "read"))
            node.value = self._stored(target, node.value, "write")
            return [ast.copy_location(before, node), node]
        self.visit(target)
        call = target.value if isinstance(target, ast.Attribute) else target.slice
        if isinstance(call, ast.Call) and isinstance(call.args[-1], ast.Constant):  # not a slice
            call.args[-1].value = "both"
            if isinstance(target, ast.Attribute):
                self._numbers += 1
                call.args.append(ast.copy_location(ast.Constant(self._numbers), call))
            node.value = self._call("store", node, node.value, self._numbers)
        return node

    def _stored(self, target: ast.Name, value: ast.expr, mode: str) -> ast.expr:
        owner = self._shared.owner(target.id, self._around)
        if owner is None:
            return value
        return self._call("stored", target, value, target.id, owner, target.lineno, mode)

    def _call(self, name: str, like: ast.AST, *arguments: Any) -> ast.Call:
        function = ast.Attribute(ast.Name(MARK, ast.Load()), name, ast.Load())
        values = [each if isinstance(each, ast.expr) else ast.Constant(each) for each in arguments]
        call = ast.Call(function, values, [])
        for node in (call, function, function.value, *values):
            ast.copy_location(node, like)
        return call


def _mode(context: ast.expr_context) -> str:
    return "read" if isinstance(context, ast.Load) else "write"


class SharedNames:
    """The variables that threads can share: globals that functions or other modules rebind, and enclosing variables."""

    def __init__(self, tree: ast.Module) -> None:
        imported = [each for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names]
        self.indirect = INDIRECT | {each.asname or each.name for each in imported if each.name in INDIRECT}
        declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        has_globals = any(isinstance(node, ast.Name) and node.id == "globals" for node in ast.walk(tree))
        rebound = {name for name, count in Counter(_bound(tree.body)).items() if count > 1 or has_globals}
        literals = (each for each in tree.body if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant))
        # Another module may assign these; one in capitals is a constant.
        assigned = {name for each in literals for name in _bound([each]) if not name.isupper()}
        self._globals = declared | rebound | assigned
        self._enclosing: dict[ast.AST, set[str]] = {}
        self._find(tree, [])

    def _find(self, node: ast.AST, around: list[Scope]) -> None:
        """Note, for each function, which of its variables an inner function rebinds."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Nonlocal):
                for name in child.names:
                    owner = next((each for each in reversed(around[:-1]) if name in variables(each)), None)
                    if owner is not None:
                        self._enclosing.setdefault(owner, set()).add(name)
            self._find(child, [*around, child] if isinstance(child, FUNCTIONS) else around)

    def owner(self, name: str, around: list[Scope]) -> str | None:
        """Return a label of the scope that shares a name, as seen from inside these functions; None if none does."""
        for scope in reversed(around):
            if name in self._enclosing.get(scope, ()):
                return f"{getattr(scope, 'name', 'lambda')}:{scope.lineno}"
            if name in variables(scope):
                return None
        return "" if name in self._globals else None


def variables(scope: Scope) -> set[str]:
    """Return the local variables of a function, parameters included."""
    arguments = scope.args
    names = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    names |= {each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None}
    body = [] if isinstance(scope, ast.Lambda) else scope.body
    elsewhere = {name for node in _own(body) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    return (names | set(_bound(body))) - elsewhere


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, once for each time, without those of inner functions and classes."""
    for node in _own(body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _own(body: list[ast.stmt]) -> Iterator[ast.AST]:
    nodes: list[ast.AST] = list(body)
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            nodes.extend(ast.iter_child_nodes(node))
