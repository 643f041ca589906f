"""Which objects an expression may be: which object is meant, and which function a call runs.

Objects are followed through variables, attributes, containers, arguments, results, closures and decorators, wherever in
the program they come from, as an inclusion-based points-to analysis does (Andersen): sets of values, one per variable,
per attribute of a class and per element of a container, that grow until nothing changes. It is asked on demand, and
distinguishes neither the calls of a function nor the objects of a class. A parameter of which nothing is known may be
taken for an object of the class that fits its name and uses (`guesses`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from paceline.concurrency.check.syntax.declarations import Class, Declarations, Function
from paceline.concurrency.check.values.bindings import Argument, Binding, bindings, fields
from paceline.concurrency.check.values.evaluation import Evaluation, Value
from paceline.concurrency.check.values.guesses import ByName
from paceline.concurrency.check.values.sources import Index, Slot, Source
from paceline.concurrency.check.values.table import Key, Table

T = TypeVar("T")


class Objects:
    """The values of the expressions of one program."""

    def __init__(self, module: Declarations) -> None:
        self._module = module
        self.index = Index(module)
        self._by_name = ByName(module)
        self._table: Table[Value] = Table(self._derive)
        self._rules = Evaluation(module, self.index, self._table.read, self._given)
        self._nodes: dict[Key, tuple[ast.expr, Function]] = {}
        #: What calls, decorators and fills give to variables, attributes and containers.
        self._gifts: dict[Key, dict[tuple[Slot, Source | Value], None]] = {}
        #: Container -> the keys of the table for its elements.
        self._elements: dict[Value, set[Key]] = {}
        self._arguments: dict[tuple[Function, str], dict[int, Argument]] = {}
        self._answers: dict[Key, tuple[int, Any]] = {}
        self._calls_are_read = self._fills_are_read = False
        #: The class for which a variable may be taken of which nothing is known.
        self.guess: Callable[[Function, str], Class | None] | None = None
        self._unknown: dict[Key, None] = {}

    # -- questions

    def of(self, node: ast.expr, fn: Function) -> tuple[Value, ...]:
        """What an expression of a function may be."""
        if isinstance(node, ast.Name):
            value = self._rules.own(node, fn)
            return (value,) if value is not None else self._get(("variable", self.index.scope(node.id, fn), node.id))
        if isinstance(node, ast.Attribute) and node.attr not in self.index.members:
            return ()
        return self._get(self._key(node, fn))

    def _key(self, node: ast.expr, fn: Function) -> Key:
        """The key of the table for an expression."""
        key: Key = ("expression", id(node), fn)
        if key not in self._nodes:
            self._nodes[key] = (node, fn)  # which also keeps its identity from being used again
        return key

    def once(self, what: str, node: ast.expr, fn: Function, answer: Callable[[], T]) -> T:
        """The answer to a question about an expression, asked anew only where some object has become known."""
        key: Key = (what, id(node), fn)
        entry = self._answers.get(key)
        if entry is not None and entry[0] == self._table.version:
            return entry[1]  # type: ignore[no-any-return]
        self._nodes.setdefault(key, (node, fn))
        result = answer()
        self._answers[key] = self._table.version, result
        return result

    def _get(self, key: Key) -> tuple[Value, ...]:
        """The values of a key, once nothing that it depends on changes, and all guesses for it are made."""
        values = self._table.get(key)
        while self.guess is not None and self._unknown:
            unknown, self._unknown = self._unknown, {}
            for each in unknown:
                _, fn, name = each
                guess = None if self._table.get(each) else self.guess(fn, name)  # type: ignore[arg-type]
                if guess is not None:
                    self._give(each, Value("object", guess))
            values = self._table.get(key)
        return values

    def classes(self, node: ast.expr, fn: Function) -> list[Class]:
        """The classes of which an expression may be an object, or that it may be, in the order of their lines."""
        values = self.of(node, fn)
        candidates = {v.what: None for v in values if v.kind in ("object", "class") and isinstance(v.what, Class)}
        return list(candidates) if len(candidates) < 2 else sorted(candidates, key=lambda cls: cls.node.lineno)

    def functions(self, node: ast.expr, fn: Function) -> list[Function]:
        """The functions that run when an expression is called; of a class, its constructor."""
        values = self.of(node, fn)
        callees = dict.fromkeys(each for v in values for each, _ in self._rules.runs(v)) if values else {}
        return list(callees) if len(callees) < 2 else sorted(callees, key=lambda each: each.line)

    def run_by(self, node: ast.expr, fn: Function, names: tuple[str, ...]) -> list[Function]:
        """What runs of an object by these methods, or of a generator: when a block enters it, or a loop iterates."""
        functions: dict[Function, None] = {}
        for value in self.of(node, fn):
            if value.kind in ("generator", "manager") and isinstance(value.what, Function):
                functions[value.what] = None
            elif value.kind == "object" and isinstance(value.what, Class):
                methods = (value.what.method(name) for name in names)
                functions |= {method: None for method in methods if method is not None}
        return list(functions)

    def only_method(self, node: ast.expr, fn: Function) -> Function | None:
        """The only method of such a name, of an object of which nothing is known."""
        return self._by_name.method(node, fn) if isinstance(node, ast.Attribute) else None

    def made(self, node: ast.expr, fn: Function) -> list[tuple[ast.Call, Function]]:
        """The calls of libraries whose results an expression may be, each with the function that makes it."""
        return [(call, maker) for call, maker, part in self.results(node, fn) if not part]

    def results(self, node: ast.expr, fn: Function) -> list[tuple[ast.Call, Function, int]]:
        """The same with which of several results of the call it is: of `reader, writer = Pipe()`."""
        values = self.of(node, fn)
        return [(v.what, v.fn, v.part) for v in values if v.kind == "made" and isinstance(v.what, ast.Call) and v.fn]

    def elements(self, node: ast.expr, fn: Function) -> tuple[Value, ...]:
        """The elements of a container that an expression may be."""
        values = [v for holder in self.of(node, fn) for v in self._get(("element", holder, None))]
        return tuple(dict.fromkeys(values))

    def arguments(self, fn: Function, name: str) -> list[Argument]:
        """What the calls of the program pass for a parameter, in the order of the calls."""
        self._read_calls()
        entries = self._arguments.get((fn, name), {}).values()
        return sorted(entries, key=lambda a: (a.site.lineno, a.site.col_offset))

    def argument_at(self, fn: Function, name: str, site: ast.Call) -> Argument | None:
        """What one call passes for a parameter."""
        return next((argument for argument in self.arguments(fn, name) if argument.site is site), None)

    def sites(self, fn: Function) -> list[ast.Call]:
        """The calls that pass anything to a function, each once, in their order."""
        self._read_calls()
        names = [*fn.parameters, f"*{fn.rest}"]
        call_sites = {id(a.site): a.site for name in names for a in self._arguments.get((fn, name), {}).values()}
        return sorted(call_sites.values(), key=lambda call: (call.lineno, call.col_offset))

    # -- what the table is filled from

    def _derive(self, key: Key) -> Iterable[Value]:
        """The values of a key of the table, from what is known of others."""
        if key[0] == "expression":
            return self._rules.evaluate(*self._nodes[key])
        if key[0] == "call":
            self._bind(key[1], key[2])  # type: ignore[arg-type]
            return ()
        if key[0] == "fill":
            self._fill(key[1])  # type: ignore[arg-type]
            return ()
        values = list(self._rules.derive(key))
        if not values and key[0] == "variable":
            _, fn, name = key
            assert isinstance(fn, Function)
            if name in fn.looped or (name in fn.parameters and fn.parameters[str(name)] is None):
                self._unknown[key] = None
        return values

    def _given(self, key: Key) -> Iterable[tuple[Slot, Source | Value]]:
        """What calls, decorators and fills give to a key, as far as they are read."""
        if key[0] == "element":
            holder = key[1]
            assert isinstance(holder, Value)
            self._elements.setdefault(holder, set()).add(key)
            if not self._fills_are_read:
                self._fills_are_read = True
                for number in range(len(self.index.fills)):
                    self._table.derive_again(("fill", number))
            key = ("element", holder)
        if not self._calls_are_read:
            self._calls_are_read = True
            for fn in self._module.functions:
                for call in fn.calls:
                    self._table.derive_again(("call", call, fn))
                if getattr(fn.node, "decorator_list", ()):
                    self._table.derive_again(("call", fn, fn.outer))
        return self._gifts.get(key, ())

    def _read_calls(self) -> None:
        """Read all calls of the program, and what follows from them."""
        top = self._module.top
        self._get(("variable", top, ""))

    def _give(self, key: Key, gift: Source | Value, slot: Slot = None) -> None:
        gifts = self._gifts.setdefault(key, {})
        if (slot, gift) in gifts:
            return
        gifts[slot, gift] = None
        if key[0] == "element":
            holder = key[1]
            assert isinstance(holder, Value)
            for each in self._elements.get(holder, ()):
                self._table.derive_again(each)
        elif key in self._table:
            self._table.derive_again(key)

    def _fill(self, number: int) -> None:
        """Give a container what one statement puts into it."""
        holder, slot, source = self.index.fills[number]
        for value in self._rules.evaluate(holder, source.fn):
            if value.kind in ("container", "made"):
                self._give(("element", value), source, slot)

    def _bind(self, call: ast.Call | Function, caller: Function) -> None:
        """Give the parameters of what a call runs its arguments; a decorator gets the function that it decorates."""
        if isinstance(call, Function):
            self._decorate(call, caller)
            return
        if not call.args and not call.keywords:
            return
        for each in bindings(call, caller, lambda node: self._runs(node, caller)):
            self._pass(each, call, caller)
        for value in self._read(call.func, caller):
            if value.kind == "class" and isinstance(value.what, Class) and value.what.method("__init__") is None:
                for owner, name, source in fields(call, value.what, caller):
                    self._give(("attribute", owner, name), source)

    def _read(self, node: ast.expr, fn: Function) -> Iterable[Value]:
        """The values of an expression as far as they are known, for what is derived from them."""
        if isinstance(node, ast.Attribute) and node.attr not in self.index.members:
            return ()
        return self._rules.evaluate(node, fn) if isinstance(node, ast.Name) else self._table.read(self._key(node, fn))

    def _runs(self, node: ast.expr, caller: Function) -> list[tuple[Function, bool]]:
        """The functions that an expression may run, each with whether an object is bound to it."""
        callees = [
            (fn, owner is not None)
            for value in self._read(node, caller)
            for fn, owner in (self._rules.runs(value) if value.kind != "partial" else ())
        ]
        if not callees and (named := self.only_method(node, caller)) is not None:
            callees = [(named, True)]
        return callees

    def _pass(self, binding: Binding, site: ast.Call, caller: Function) -> None:
        fn, name, source, slot = binding
        if not name.startswith("*"):
            self._give(("variable", fn, name), source)
        elif not isinstance(fn.node, ast.Module):
            special = fn.node.args.kwarg if name.startswith("**") else fn.node.args.vararg
            if special is not None:
                self._give(("element", Value("container", special, fn=fn)), source, slot)
        if source.take == "is":
            argument = Argument(source.node, caller, site)
            self._arguments.setdefault((fn, name), {}).setdefault(id(source.node), argument)

    def _decorate(self, fn: Function, around: Function) -> None:
        for decorator in getattr(fn.node, "decorator_list", ()):
            for value in self._rules.evaluate(decorator, around):
                for run, owner in self._rules.runs(value):
                    parameters = list(run.parameters)[int(owner is not None) :]
                    if parameters:
                        self._give(("variable", run, parameters[0]), Value("function", fn))
