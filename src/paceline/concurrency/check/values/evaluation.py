"""What an expression may be, from what is known of its parts: one rule for each form of Python.

The rules read the values of variables, attributes, elements, results and yields from the table of `objects`, which
derives them again when these grow.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.syntax.declarations import Class, Declarations, Function
from paceline.concurrency.check.syntax.tree import dotted, keyword, model_in, parent, short_name
from paceline.concurrency.check.values import sources
from paceline.concurrency.check.values.guesses import annotated, class_named
from paceline.concurrency.check.values.sources import Index, Slot, Source
from paceline.concurrency.check.values.table import Key


class Value(NamedTuple):
    """An object as the analysis distinguishes them."""

    #: object (of a class), class, super, function, partial, generator, coroutine, manager (of a `with`), container,
    #: made (by a library)
    kind: str
    what: Class | Function | ast.AST
    #: The class of the object of a bound method.
    of: Class | None = None
    #: The function that evaluates the expression of a container, or of what a library made.
    fn: Function | None = None
    #: Which of several results of a library: of `reader, writer = Pipe()`.
    part: int = 0


_HOLDS = {"container", "made"}
#: Functions that return an argument -> its position.
_PASS = libraries.table("functions that return an argument")


class Evaluation:
    """The rules by which values follow from each other."""

    def __init__(
        self,
        module: Declarations,
        index: Index,
        read: Callable[[Key], tuple[Value, ...]],
        given: Callable[[Key], Iterable[tuple[Slot, Source | Value]]],
    ) -> None:
        """`read` gives the values of a key so far, `given` what calls, decorators and fills elsewhere add to it."""
        self._module, self._index, self._read, self._given = module, index, read, given
        self._made: dict[int, ast.Call] = {}

    def derive(self, key: Key) -> Iterable[Value]:
        """The values of a key: `(variable, scope, name)`, `(attribute, class, name)` and their like."""
        kind, *rest = key
        rule: Callable[..., Iterator[Value]] = getattr(self, f"_of_{kind}")
        return rule(*rest)

    def _of_variable(self, scope: Function, name: str) -> Iterator[Value]:
        """A variable of a function, or of the top level of a file."""
        if name in scope.nested:
            yield Value("function", scope.nested[name])
            yield from self._read(("decorated", scope.nested[name]))
        elif scope is self._module.top and name in self._module.classes:
            yield Value("class", self._module.classes[name])
        if name in scope.parameters:
            yield from self._of_parameter(scope, name)
        for source in self._index.variable(scope, name):
            yield from self._follow(source)
        for _, gift in self._given(("variable", scope, name)):
            yield from self._follow(gift)

    def _of_parameter(self, fn: Function, name: str) -> Iterator[Value]:
        """What the annotation and the default of a parameter say; what calls pass is given by them."""
        yield from self._annotated(fn.parameters[name])
        arguments = fn.node.args if not isinstance(fn.node, ast.Module) else None
        for special in (arguments.vararg, arguments.kwarg) if arguments is not None else ():
            if special is not None and special.arg == name:
                yield Value("container", special, fn=fn)
        default = fn.default(name)
        if default is not None:
            yield from self.evaluate(default, fn.outer or self._module.top)

    def _of_attribute(self, cls: Class, name: str) -> Iterator[Value]:
        """An attribute of the objects of a class, which bases, derived classes and others may assign."""
        family = self._index.family(cls)
        for each in family:
            for value, fn in each.values.get(name, ()):
                part = sources.part_of(value, name)
                yield from self._follow(Source("is" if part is None else "item", value, fn, part))
            yield from self._annotated(each.annotations.get(name))
            for _, gift in self._given(("attribute", each, name)):
                yield from self._follow(gift)
        for owner, source in self._index.assigned(name):
            if any(v.what in family for v in self.evaluate(owner, source.fn) if v.kind in ("object", "class")):
                yield from self._follow(source)

    def _of_element(self, holder: Value, slot: Slot) -> Iterator[Value]:
        """The elements of a container or queue: all, or those of one constant key or index."""
        entries = sources.of_container(holder.what, holder.fn) if holder.fn and isinstance(holder.what, ast.AST) else ()
        for key, source in (*entries, *self._given(("element", holder, slot))):
            if slot is None or key is None or key == slot:
                yield from self._follow(source)
        made_by = holder.what.func if isinstance(holder.what, ast.Call) else None
        if isinstance(made_by, ast.Attribute) and made_by.attr == "__subclasses__" and holder.fn is not None:
            bases = (value.what for value in self.evaluate(made_by.value, holder.fn) if value.kind == "class")
            yield from (Value("class", each) for base in bases for each in self._index.derived(base))  # type: ignore[arg-type]

    def _of_results(self, fn: Function) -> Iterator[Value]:
        """What a function returns, but for its own object."""
        if isinstance(fn.node, ast.Lambda):
            yield from self.evaluate(fn.node.body, fn)
        else:
            yield from self._annotated(getattr(fn.node, "returns", None))
        for returned in fn.returns:
            if returned.value is not None and dotted(returned.value) != (fn.self_name or None):
                yield from self.evaluate(returned.value, fn)

    def _of_decorated(self, fn: Function) -> Iterator[Value]:
        """What decorators put in the place of a function."""
        for decorator in getattr(fn.node, "decorator_list", ()):
            for value in self.evaluate(decorator, fn.outer or self._module.top):
                yield from (v for v in self._result(value) if v.what is not fn)

    def _of_yields(self, fn: Function) -> Iterator[Value]:
        """What a generator yields."""
        for node in fn.yields:
            if isinstance(node, ast.YieldFrom):
                yield from self._elements(self.evaluate(node.value, fn))
            elif node.value is not None:
                yield from self.evaluate(node.value, fn)

    # -- expressions

    def evaluate(self, node: ast.expr, fn: Function) -> list[Value]:
        """The values of an expression, from what is known of its parts."""
        method = _EXPRESSIONS.get(type(node))
        return [] if method is None else list(method(self, node, fn))

    def _name(self, node: ast.Name, fn: Function) -> Iterable[Value]:
        value = self.own(node, fn)
        return [value] if value is not None else self._read(("variable", self._index.scope(node.id, fn), node.id))

    @staticmethod
    def own(node: ast.Name, fn: Function) -> Value | None:
        """The own object or class of a method."""
        if fn.cls is None or node.id not in (fn.self_name, "cls") or fn.decorated("staticmethod"):
            return None
        if node.id != fn.self_name and (node.id in fn.looped or node.id in fn.bound):
            return None  # another class: `for cls in classes`
        return Value("class" if node.id == "cls" or fn.decorated("classmethod") else "object", fn.cls)

    def _attribute(self, node: ast.Attribute, fn: Function) -> Iterator[Value]:
        if node.attr not in self._index.members:
            return
        on_self = isinstance(node.value, ast.Name) and node.value.id == fn.self_name
        owners = self.evaluate(node.value, fn)
        for value in owners:
            yield from self._member(value, node.attr, on_self)
        if self._index.assigned(node.attr) and all(value.kind == "made" for value in owners):
            yield from self._read(("foreign", node.attr))

    def _of_foreign(self, name: str) -> Iterator[Value]:
        """What is assigned to an attribute of a library's objects: `server.app = App()`."""
        for owner, source in self._index.assigned(name):
            if any(v.kind == "made" for v in self.evaluate(owner, source.fn)):
                yield from self._follow(source)

    def _member(self, value: Value, name: str, on_self: bool = False) -> Iterator[Value]:
        """An attribute of a value; where it is `on_self`, a derived class may have replaced the method."""
        cls = value.what
        if not isinstance(cls, Class):
            return
        ancestry = cls.ancestry[1:] if value.kind == "super" else cls.ancestry
        below = self._index.derived(cls) if on_self else []
        first = next((c.methods[name] for c in ancestry if name in c.methods), None)
        methods = dict.fromkeys([first, *(c.methods[name] for c in below if name in c.methods)])
        for method in methods:
            if method is None:
                continue
            bound = value.kind != "class" or method.decorated("classmethod")
            function = Value("function", method, cls if bound and not method.decorated("staticmethod") else None)
            if any(name in c.properties for c in ancestry):
                yield from self._result(function)
            else:
                yield function
                yield from self._read(("decorated", method))
        if first is None and value.kind != "super":
            yield from self._read(("attribute", cls, name))

    def _subscript(self, node: ast.Subscript, fn: Function) -> Iterator[Value]:
        is_slice = isinstance(node.slice, ast.Slice)
        for value in self.evaluate(node.value, fn):
            if is_slice:
                yield value
            elif value.kind in _HOLDS:
                yield from self._read(("element", value, sources.slot_of(node.slice)))
            for got in self._member(value, "__getitem__") if value.kind == "object" else ():
                yield from self._result(got)

    def _call(self, call: ast.Call, fn: Function) -> Iterator[Value]:
        """What a call returns: of the program's own functions, of containers, or of a library."""
        name, is_resolved, empty = short_name(call.func), False, True
        for value in self.evaluate(call.func, fn):
            is_resolved = is_resolved or bool(self.runs(value)) or value.kind == "class"
            for result in self._result(value):
                empty = False
                yield result
        if is_resolved or not empty:
            return
        if name == "super" and isinstance(call.func, ast.Name):
            yield from [Value("super", fn.cls)] if fn.cls is not None else ()
        elif name == "getattr" and len(call.args) > 1:
            word = sources.slot_of(call.args[1])
            for value in self.evaluate(call.args[0], fn):
                yield from self._member(value, str(word))
        elif name in ("next", "anext") and call.args:
            yield from self._elements(self.evaluate(call.args[0], fn))
        elif name == "partial" and call.args:
            yield from (Value("partial", run) for v in self.evaluate(call.args[0], fn) for run, _ in self.runs(v))
        elif name == "field" and (factory := keyword(call, "default_factory")) is not None:
            yield from self._follow(Source("result", factory, fn))
        elif name in _PASS and len(call.args) > _PASS[name]:
            values = self.evaluate(call.args[_PASS[name]], fn)
            yield from self._entered(values) if name.startswith("enter") else values
        elif sources.is_container(call) or name == "__subclasses__":
            yield Value("container", call, fn=fn)
        else:
            yield from self._looked_up(call, fn) or self._foreign(call, fn)

    def _looked_up(self, call: ast.Call, fn: Function) -> list[Value]:
        """What `get`, `pop` and their like take out of a container or queue."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in sources.LOOKS_UP:
            return []
        slot = sources.slot_of(call.args[0]) if call.args else None
        holders = [v for v in self.evaluate(call.func.value, fn) if v.kind in _HOLDS]
        elements = [v for holder in holders for v in self._read(("element", holder, slot))]
        return [*elements, *(self.evaluate(call.args[1], fn) if len(call.args) > 1 and holders else ())]

    def _foreign(self, call: ast.Call, fn: Function) -> list[Value]:
        """What a call of a library makes: a wrapped model is the model itself."""
        model = model_in(call)
        if model is not None:
            models = [v for v in self.evaluate(model, fn) if isinstance(v.what, Class) and v.what.is_model]
            if models:
                return models
        if not isinstance(call.func, ast.Name | ast.Attribute):
            return []
        named = class_named(call.func, self._module)
        return [Value("object", named) if named is not None else Value("made", call, fn=fn)]

    def _either(self, node: ast.IfExp | ast.BoolOp, fn: Function) -> Iterator[Value]:
        for part in node.values if isinstance(node, ast.BoolOp) else (node.body, node.orelse):
            yield from self.evaluate(part, fn)

    def _sum(self, node: ast.BinOp, fn: Function) -> list[Value]:
        """Two lists; a long sum is none."""
        long = isinstance(node.left, ast.BinOp) or not isinstance(node.op, ast.Add)
        return [] if long else [*self.evaluate(node.left, fn), *self.evaluate(node.right, fn)]

    def _inner(self, node: ast.NamedExpr | ast.Starred, fn: Function) -> list[Value]:
        return self.evaluate(node.value, fn)

    def _awaited(self, node: ast.Await, fn: Function) -> Iterator[Value]:
        for value in self.evaluate(node.value, fn):
            if value.kind == "coroutine" and isinstance(value.what, Function):
                yield from self._returned(value.what, value.of)
            else:
                yield value

    def _lambda(self, node: ast.Lambda, fn: Function) -> list[Value]:
        function = self._module.function_of(node)
        return [] if function is None else [Value("function", function)]

    def _container(self, node: ast.expr, fn: Function) -> list[Value]:
        return [Value("container", node, fn=fn)]

    # -- what is done with values

    def _follow(self, source: Source | Value) -> Iterable[Value]:
        """The values that come from a source."""
        if isinstance(source, Value):
            return [source]
        values = self.evaluate(source.node, source.fn)
        if source.take == "result":
            if isinstance(source.node, ast.Name) and source.node.id in sources.EMPTY:
                return [Value("container", source.node, fn=source.fn)]
            results = [v for each in values for v in self._result(each)]
            library = not values and isinstance(source.node, ast.Name | ast.Attribute)
            return [Value("made", self._call_of(source.node), fn=source.fn)] if library else results
        if source.take in ("element", "part"):
            values = list(self._elements(values))
        if source.take in ("item", "part"):
            return [v for each in values for v in self._item(each, source.slot)]
        return self._entered(values) if source.take == "enter" else values

    def _call_of(self, node: ast.expr) -> ast.Call:
        """The call that something else makes of a function of a library, as in `defaultdict(Lock)`."""
        if id(node) not in self._made:
            call = self._made[id(node)] = ast.copy_location(ast.Call(node, [], []), node)
            call.up = parent(node)  # type: ignore[attr-defined]
        return self._made[id(node)]

    def _item(self, value: Value, slot: Slot) -> Iterable[Value]:
        """An item of what is taken apart: of a container, or one of several results of a library."""
        if value.kind == "container":
            return self._read(("element", value, slot))
        return [value._replace(part=slot)] if value.kind == "made" and isinstance(slot, int) else []

    def _elements(self, values: Iterable[Value]) -> Iterator[Value]:
        """What a loop over these goes through."""
        for value in values:
            if value.kind in _HOLDS:
                yield from self._read(("element", value, None))
            elif value.kind == "generator":
                yield from self._read(("yields", value.what))
            elif value.kind == "object":
                for name in ("__iter__", "__aiter__"):
                    iterators = [v for method in self._member(value, name) for v in self._result(method)]
                    yield from self._elements(v for v in iterators if v.kind != "object")
                    following = (m for v in iterators if v.kind == "object" for m in self._member(v, "__next__"))
                    for method in following:
                        yield from self._result(method)

    def _entered(self, values: Iterable[Value]) -> Iterator[Value]:
        """What a `with` gets that enters these."""
        for value in values:
            if value.kind == "manager":
                yield from self._read(("yields", value.what))
            elif value.kind == "object":
                for name in ("__enter__", "__aenter__"):
                    for method in self._member(value, name):
                        for run, owner in self.runs(method):
                            yield from self._returned(run, owner)
            else:
                yield value

    def _result(self, value: Value) -> Iterable[Value]:
        """What calling a value returns."""
        if value.kind == "class":
            return [Value("object", value.what)]
        if value.kind == "container":
            return self._read(("element", value, None)) if self._is_reference(value) else []
        results: list[Value] = []
        for fn, owner in self.runs(value):
            if fn.decorated("contextmanager", "asynccontextmanager"):
                results.append(Value("manager", fn))
            elif fn.generator:
                results.append(Value("generator", fn))
            elif fn.asynchronous:
                results.append(Value("coroutine", fn, owner))
            else:
                results += self._returned(fn, owner)
        return results

    def _returned(self, fn: Function, owner: Class | None) -> Iterator[Value]:
        """What a function returns that is bound to an object of a class."""
        yield from self._read(("results", fn))
        if owner is not None and any(dotted(r.value) == fn.self_name for r in fn.returns if r.value is not None):
            yield Value("object", owner)

    def runs(self, value: Value) -> list[tuple[Function, Class | None]]:
        """The functions that run when a value is called, each with the class of the object that it is bound to."""
        what = value.what
        if isinstance(what, Function):
            return [(what, value.of)] if value.kind in ("function", "partial") else []
        if not isinstance(what, Class):
            referents = self._read(("element", value, None)) if self._is_reference(value) else ()
            return [each for v in referents if v.kind != "container" for each in self.runs(v)]
        if value.kind == "class":
            constructor = what.method("__init__")
            return [] if constructor is None else [(constructor, what)]
        called = what.method("__call__") or (what.method("forward") if what.is_model else None)
        return [(called, what)] if called is not None and value.kind == "object" else []

    @staticmethod
    def _is_reference(value: Value) -> bool:
        """Whether a container stands for a weak reference, whose call gives what it refers to."""
        return isinstance(value.what, ast.Call) and short_name(value.what.func) in sources.REFERENCES

    def _annotated(self, annotation: ast.expr | None) -> list[Value]:
        """An object of the class that an annotation names."""
        cls = annotated(annotation, self._module)
        return [] if cls is None else [Value("object", cls)]


#: Kind of expression -> the rule for its values.
_EXPRESSIONS: dict[type[ast.AST], Callable[[Evaluation, Any, Function], Iterable[Value]]] = {
    ast.Name: Evaluation._name,
    ast.Attribute: Evaluation._attribute,
    ast.Subscript: Evaluation._subscript,
    ast.Call: Evaluation._call,
    ast.Lambda: Evaluation._lambda,
    ast.BinOp: Evaluation._sum,
    **dict.fromkeys((ast.IfExp, ast.BoolOp), Evaluation._either),
    ast.Await: Evaluation._awaited,
    **dict.fromkeys((ast.NamedExpr, ast.Starred), Evaluation._inner),
    **dict.fromkeys(
        (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp),
        Evaluation._container,
    ),
}
