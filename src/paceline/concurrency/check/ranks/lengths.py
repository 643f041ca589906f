"""How many elements a rank iterates over, where that number differs from rank to rank.

The parts of a list that ranks take for themselves differ in value, and need not differ in number: `rows[rank * n :
(rank + 1) * n]` has n rows on every rank. `files[rank::world]` has one more on the first ranks unless the number of
files is a multiple, which nothing says; so has the last part of a list that is cut at its end, and what a filter leaves
of the data of one rank.
"""

from __future__ import annotations

import ast

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.ranks.origins import DATA, RANK, asks_for_ranks
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, keyword, short_name
from paceline.concurrency.check.values.module import Module

DEPTH = 10
#: What has as many elements as its first argument, or one for so many of them.
_KEEPS = libraries.names("functions whose result is as long as their argument")
_PARTS = {"array_split", "chunk", "chunked", "divide", "distribute", "tensor_split"}
_LISTS = {"glob", "iglob", "rglob", "listdir", "scandir", "iterdir", "open", "read_csv", "load"}
Sum = dict[str, tuple[int, ast.expr]]  # a term as text -> how often it occurs, and one of its places


class Lengths:
    """The numbers of elements in one file."""

    def __init__(self, module: Module) -> None:
        self.module, self._value = module, module.varying.why
        self._known: dict[int, str] = {}

    def why(self, node: ast.expr | None, fn: Function, depth: int = 0) -> str:
        """Why the number of elements differs from rank to rank; empty when it is not known to."""
        if node is None or depth > DEPTH:
            return ""
        if id(node) not in self._known:
            self._known[id(node)] = ""
            self._known[id(node)] = self._why(node, fn, depth + 1)
        return self._known[id(node)]

    def _why(self, node: ast.expr, fn: Function, depth: int) -> str:
        if isinstance(node, ast.Name):
            return self._of_name(node, fn, depth)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, fn, depth)
        if isinstance(node, ast.Subscript):
            return self._of_part(node, fn, depth)
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            reasons = (self._value(test, fn) for g in node.generators for test in g.ifs)
            return next((w for w in reasons if w), "") or self.why(node.generators[0].iter, fn, depth)
        if isinstance(node, ast.IfExp):
            return self.why(node.body, fn, depth) or self.why(node.orelse, fn, depth)
        return self._of_call(node, fn, depth) if isinstance(node, ast.Call) else ""

    def _of_name(self, node: ast.Name, fn: Function, depth: int) -> str:
        for scope in fn.scopes():
            assignments = [(t, v) for t, v in scope.assigns if isinstance(t, ast.Name) and t.id == node.id]
            if assignments:
                if any(dotted(a.target) == node.id for a in scope.augmented):
                    return ""  # filled up
                before = [(t, v) for t, v in assignments if t.lineno < node.lineno or scope is not fn]
                _, value = max(before or assignments, key=lambda pair: pair[0].lineno)
                if isinstance(value, ast.List) and not value.elts:
                    return self._filled(node.id, scope, depth)
                return self.why(value, scope, depth)
            if node.id in scope.parameters:
                passed = self.module.objects.arguments(scope, node.id)
                return next((w for a in passed if (w := self.why(a.value, a.caller, depth))), "")
        return ""

    def _filled(self, name: str, fn: Function, depth: int) -> str:
        """Why a list differs in length that is filled in a loop: under a test, or in so many turns."""
        for call in fn.calls:
            if dotted(call.func) == f"{name}.append":
                test, loop = enclosing(call, ast.If), enclosing(call, ast.For)
                inside = isinstance(loop, ast.For) and isinstance(test, ast.If) and test.lineno > loop.lineno
                if inside and (why := self._value(test.test, fn)):  # type: ignore[union-attr]
                    return "" if asks_for_ranks(test.test) else why  # type: ignore[union-attr]
                return self.why(loop.iter, fn, depth) if isinstance(loop, ast.For) else ""
        return ""

    def _of_attribute(self, node: ast.Attribute, fn: Function, depth: int) -> str:
        owner = self.module.type_of(node.value, fn)
        values = [v for cls in owner.ancestry for v in cls.values.get(node.attr, ())] if owner is not None else []
        return next((w for value, scope in values if (w := self.why(value, scope, depth))), "")

    def _of_part(self, node: ast.Subscript, fn: Function, depth: int) -> str:
        """A slice, one of several parts, or what a mask leaves."""
        part = node.slice
        if not isinstance(part, ast.Slice):
            chosen = fn.bound.get(part.id, part) if isinstance(part, ast.Name) else part
            negates = isinstance(chosen, ast.UnaryOp) and not isinstance(chosen.op, ast.USub)
            if (negates or isinstance(chosen, ast.Compare)) and self._value(node.value, fn):
                return DATA
            binding = self._bound(node.value, fn)
            parts = isinstance(binding, ast.Call) and short_name(binding.func) in _PARTS
            return self._value(part, fn) if parts else ""
        if self._checked(fn) or self._cut(node.value, fn):
            return ""
        if part.step is not None and part.lower is not None:
            return self._value(part.lower, fn) or self.why(node.value, fn, depth)
        if part.lower is not None and part.upper is not None:
            return self._between(part.lower, part.upper, fn)
        return self.number(part.upper, fn, depth) if part.upper is not None else self.why(node.value, fn, depth)

    def _cut(self, node: ast.expr, fn: Function) -> bool:
        """Whether a list was cut or filled up to a length before it is dealt out."""
        filled = any(dotted(a.target) == dotted(node) for a in fn.augmented)
        binding = self._bound(node, fn)
        if isinstance(binding, ast.Call) and binding.args and isinstance(binding.args[0], ast.Constant):
            return True  # of a length that the author has chosen
        part = binding.slice if isinstance(binding, ast.Subscript) else None
        return filled or (isinstance(part, ast.Slice) and part.upper is not None and part.lower is None)

    def _bound(self, node: ast.expr, fn: Function) -> ast.expr:
        """What a name was given in this function before."""
        values = fn.values_of(node.id) if isinstance(node, ast.Name) else []
        before = [value for value in values if value.lineno < node.lineno]
        return max(before, key=lambda value: value.lineno) if before else node

    @staticmethod
    def _checked(fn: Function) -> bool:
        """Whether a function makes sure that something can be divided without a remainder."""
        asserted = [n.test for n in ast.walk(fn.node) if isinstance(n, ast.Assert)]
        refused = [t.test for t in fn.tests if isinstance(t, ast.If) and isinstance(t.body[-1], ast.Raise)]
        return any(isinstance(n, ast.Mod) for test in asserted + refused for n in ast.walk(test))

    # -- numbers

    def number(self, node: ast.expr | None, fn: Function, depth: int = 0) -> str:
        """Why a number differs that says how often something is done."""
        if node is None or depth > DEPTH:
            return ""
        if isinstance(node, ast.Call) and short_name(node.func) == "len" and node.args:
            return self.why(node.args[0], fn, depth + 1)
        if isinstance(node, ast.Call) and short_name(node.func) in ("int", "ceil", "floor", "max", "min", "round"):
            return next((w for a in node.args if (w := self.number(a, fn, depth + 1))), "")
        if isinstance(node, ast.BinOp):
            return self.number(node.left, fn, depth + 1) or self.number(node.right, fn, depth + 1)
        if isinstance(node, ast.Name):
            values = fn.values_of(node.id)
            if len(values) == 1 and isinstance(values[0], ast.Call | ast.BinOp):
                return self.number(values[0], fn, depth + 1)
        if isinstance(node, ast.Call) and not self._of_the_rank(node):
            whys = [self._value(a, fn) for a in (*node.args, *(k.value for k in node.keywords))]
            if self.module.callee(node, fn) is None or RANK not in whys:
                return ""  # `parts[rank].numel()`: nothing says that the parts differ
        why = self._value(node, fn)
        return why if why != DATA else ""

    def _of_the_rank(self, node: ast.Call) -> bool:
        return short_name(node.func) in catalogue.RANK_CALLS or short_name(node.func) in ("get", "getenv")

    def _between(self, lower: ast.expr, upper: ast.expr, fn: Function) -> str:
        """Why the number of steps from one number to another differs: what is left of their difference."""
        total = _added(self._sum(upper, fn), self._sum(lower, fn), -1)
        why = (self.number(place, fn) for count, place in total.values() if count)
        return next((w for w in why if w), "")

    def more(self, one: ast.expr, other: ast.expr, fn: Function) -> int:
        """By how much a number is larger than another one; 0 where that is not known."""
        total = _added(self._sum(one, fn), self._sum(other, fn), -1)
        difference = {text: count for text, (count, _) in total.items() if count}
        return difference.get("", 0) if not set(difference) - {""} else 0

    def _sum(self, node: ast.expr, fn: Function, depth: int = 0) -> Sum:
        """A number as a sum of products, names replaced by what they are given."""
        if isinstance(node, ast.Name) and depth < 4:
            values = fn.values_of(node.id)
            if len(values) == 1 and isinstance(values[0], ast.BinOp | ast.Name | ast.Constant | ast.IfExp):
                return self._sum(values[0], fn, depth + 1)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return {"": (node.value, node)}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            left, right = self._sum(node.left, fn, depth + 1), self._sum(node.right, fn, depth + 1)
            if isinstance(node.op, ast.Mult):
                return _multiplied(left, right)
            return _added(left, right, 1 if isinstance(node.op, ast.Add) else -1)
        return {ast.unparse(node): (1, node)}

    # -- calls

    def _of_call(self, node: ast.Call, fn: Function, depth: int) -> str:
        name = short_name(node.func)
        if name == "range":
            return self._of_range(node, fn, depth)
        if name == "DataLoader":
            sampler = keyword(node, "sampler") or keyword(node, "batch_sampler")
            return self.why(sampler or keyword(node, "dataset", 0), fn, depth)
        if name == "Subset":
            return self.why(keyword(node, "indices", 1), fn, depth)
        if name == "zip" and any(isinstance(a, ast.Call) and short_name(a.func) == "range" for a in node.args):
            return ""  # as often as a number says that all ranks may have agreed on
        if name in ("zip", "filter"):
            return next((w for a in node.args if (w := self.why(a, fn, depth))), "")
        if (name == "shard" and self.module.callee(node, fn) is None) or name in _LISTS:
            arguments = [*node.args, *(k.value for k in node.keywords)]
            whys = [self._value(a, fn) for a in arguments]
            return RANK if RANK in whys else ""
        cls = self.module.classes.get(name)
        if cls is not None:
            return self._of_object(cls.method("__iter__"), cls.method("__len__"), depth)
        callee = self.module.callee(node, fn)
        if callee is not None:
            reasons = (self.why(r.value, callee, depth) for r in callee.returns)
            return self._of_object(callee, None, depth) if callee.generator else next((w for w in reasons if w), "")
        if name in ("items", "keys", "values") and isinstance(node.func, ast.Attribute):
            return self.why(node.func.value, fn, depth)
        return self.why(node.args[0], fn, depth) if name in _KEEPS and node.args else ""

    def _of_object(self, iterated: Function | None, counted: Function | None, depth: int) -> str:
        """An object by what it iterates over, else by the length that it tells."""
        if iterated is not None:
            loops = [loop for loop in iterated.loops if isinstance(loop, ast.For)]
            return next((w for loop in loops if (w := self.why(loop.iter, iterated, depth))), "")
        returned = counted.returns if counted is not None else ()
        return next((w for r in returned if (w := self.number(r.value, counted, depth))), "")  # type: ignore[arg-type]

    def _of_range(self, node: ast.Call, fn: Function, depth: int) -> str:
        if self._checked(fn) or not node.args:
            return ""
        if len(node.args) == 1:
            return self.number(node.args[0], fn, depth)
        if len(node.args) == 2:
            return self._between(node.args[0], node.args[1], fn)
        return self._between(node.args[0], node.args[1], fn) or self.number(node.args[2], fn, depth)


def _added(one: Sum, other: Sum, sign: int) -> Sum:
    total = dict(one)
    for text, (count, place) in other.items():
        total[text] = (total.get(text, (0, place))[0] + sign * count, place)
    return total


def _multiplied(one: Sum, other: Sum) -> Sum:
    total: Sum = {}
    for text, (count, place) in one.items():
        for word, (times, other_place) in other.items():
            product = "*".join(sorted(filter(None, (*text.split("*"), *word.split("*")))))
            where = ast.BinOp(place, ast.Mult(), other_place)
            total[product] = (total.get(product, (0, where))[0] + count * times, where)
    return total
