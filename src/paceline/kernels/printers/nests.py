"""Loop nests as lines of C++: a contraction with its register block, an expression at every place, and the rest."""

from __future__ import annotations

from math import prod

from paceline.kernels.blocks import Block, places
from paceline.kernels.ir import (
    Apply,
    Call,
    Contract,
    Expression,
    Highest,
    Index,
    Lookup,
    Loop,
    Meet,
    Noise,
    Number,
    Op,
    Ref,
    Repeat,
    Route,
    Scatter,
    Score,
    Statement,
    Track,
    leaves,
    replaced,
    strides,
)
from paceline.kernels.memory import Turn, used_by
from paceline.kernels.printers.others import Lines, Others
from paceline.kernels.printers.words import brackets, opening, parts, points, shifted

NAMES = {"tanh": "tanh_"}  # where C++ has a function of that name already


class Nests(Others):
    function_words = "static __attribute__((noinline)) void"

    # --- statements ---

    def function(self, name: str, statement: Statement | Turn, blocks: tuple[Block, ...]) -> Lines:
        self.blocks = iter(blocks)
        body = list(self.lines(statement, "    "))
        yield f"// {_told(statement)}"
        yield f"{self.function_words} {name}(Group& g) {{"
        yield from self.declarations(used_by([statement]))
        yield from body
        yield "}"
        yield ""

    def lines(self, statement: Statement | Turn, indent: str) -> Lines:
        match statement:
            case Contract():
                yield from self.contract(statement, next(self.blocks), indent)
            case Apply():
                yield from self.apply(statement, indent)
            case Highest():
                yield from self.highest(statement, indent)
            case Route():
                yield from self.route(statement, indent)
            case Repeat():
                yield from self.repeat(statement, indent)
            case Noise(target=target, rate=rate, number=number):
                size = prod(self.plan.places[target].shape)
                yield f"{indent}{self.each(size)}"
                yield f"{indent}    {self.name(target)}[q] = kept(g, {number}, q, R({rate!r}));"
            case Lookup():
                yield from self.lookup(statement, indent)
            case Scatter():
                yield from self.scatter(statement, indent)
            case Meet():
                yield from self.meet(statement, indent)
            case Track():
                yield from self.track(statement, indent)
            case Score():
                yield from self.score(statement, indent)
            case Turn():
                yield from self.turn(statement, indent)

    def repeat(self, it: Repeat, indent: str) -> Lines:
        name, extent = it.loop.name, it.loop.extent
        backwards = f"for (int {name} = {extent - 1}; {name} >= 0; {name}--)"
        yield f"{indent}{backwards if it.backwards else opening(it.loop)} {{"
        for inner in it.body:
            yield from self.wait(indent + "    ", inner)
            yield from self.lines(inner, indent + "    ")
        yield from self.wait(indent + "    ")
        yield f"{indent}}}"

    def wait(self, indent: str, before: Statement | Turn | None = None) -> Lines:
        """Threads that work on the same sample wait for each other before this statement; none: whatever follows."""
        yield from ()

    # --- contractions ---

    def contract(self, it: Contract, block: Block, indent: str) -> Lines:
        """Outer loops name the place in the target, inner ones are summed over; a block's rounds are written out."""
        order = [*it.fixed(), *it.summed()]
        yield from self._loops(it, block, order, {}, indent)

    def _loops(self, it: Contract, block: Block, order: list[Loop], rounds: dict[str, int], indent: str) -> Lines:
        fixed = it.fixed()
        if len(rounds) == len(fixed):
            yield from self._sums(it, block, order, rounds, indent)
            return
        loop = order[len(rounds)]
        for header, count in parts(loop, block.of(loop.name)):
            yield f"{indent}{header}" + " {"
            yield from self._loops(it, block, order, {**rounds, loop.name: count}, indent + "    ")
            yield f"{indent}}}"

    def _sums(self, it: Contract, block: Block, order: list[Loop], rounds: dict[str, int], indent: str) -> Lines:
        sums, where = self.sums(it, rounds)
        for shift, name in sums.items():
            start = "" if it.start is None else f" + {self.load(it.start, where[shift])}"
            yield f"{indent}{self.number} {name} = {self.number}{{}}{start};"
        yield from self._inner(it, block, list(it.summed()), dict(rounds), sums, indent)
        for shift, name in sums.items():
            yield from self._finish(it, name, where[shift], indent)

    def sums(self, it: Contract, rounds: dict[str, int]) -> tuple[dict[int, str], dict[int, dict[str, int]]]:
        """The results that a block makes, by their place relative to the first: names, and which rounds make them."""
        target = self.plan.at(it.target)
        names = {shift: f"s{k}" for k, shift in enumerate(sorted(places(target, rounds)))}
        return names, {shifted(target, point): point for point in points(rounds)}

    def _finish(self, it: Contract, name: str, point: dict[str, int], indent: str) -> Lines:
        """A sum goes where it belongs, and through what follows number by number."""
        if it.keeps:
            yield f"{indent}{self.store(it.target, point, it.add or self.plan.nest(it).aliased, name)}"
        known: dict[Ref, str] = {it.target: name}
        for number, then in enumerate(it.then):
            result = f"{name}_{number}"
            value = self.expression(then.value, point, known)
            yield f"{indent}const {self.number} {result} = {self.number}{{}} + {value};"
            yield f"{indent}{self.store(then.target, point, then.add, result)}"
            known[then.target] = result

    def _inner(
        self, it: Contract, block: Block, left: list[Loop], rounds: dict[str, int], sums: dict[int, str], indent: str
    ) -> Lines:
        if not left:
            yield from self._multiply(it, rounds, sums, indent)
            return
        loop, *rest = left
        for header, count in parts(loop, block.of(loop.name)):
            yield f"{indent}{header}" + " {"
            yield from self._inner(it, block, rest, {**rounds, loop.name: count}, sums, indent + "    ")
            yield f"{indent}}}"

    def _multiply(self, it: Contract, rounds: dict[str, int], sums: dict[int, str], indent: str) -> Lines:
        target = self.plan.at(it.target)
        seen: dict[str, str] = {}
        summed = [loop.name for loop in it.summed()]
        ordered = sorted(points(rounds), key=lambda p: [p.get(n, 0) for n in summed])
        for point in ordered:
            factors = []
            for kind, ref in (("r", it.right), ("l", it.left)):
                if ref is None:
                    continue
                text = self.load(ref, point)
                if text not in seen:
                    seen[text] = f"{kind}{len(seen)}"
                    yield f"{indent}const {self.element(ref)} {seen[text]} = {text};"
                factors.append(seen[text])
            yield f"{indent}{sums[shifted(target, point)]} += {' * '.join(reversed(factors))};"

    def element(self, ref: Ref) -> str:
        return self.plan.places[ref.buffer].element

    def load(self, ref: Ref, point: dict[str, int]) -> str:
        return self.place(ref, shifted(self.plan.at(ref), point))

    def store(self, ref: Ref, point: dict[str, int], add: bool, value: str) -> str:
        return f"{self.place(ref, shifted(self.plan.at(ref), point))} {'+=' if add else '='} {value};"

    # --- expressions at every place ---

    def apply(self, it: Apply, indent: str) -> Lines:
        it = self.flat(it) or it
        for loop in it.loops:
            yield f"{indent}{opening(loop)}"
            indent += "    "
        value = f"{self.number}{{}} + {self.expression(it.value, {}, {})}"
        yield f"{indent}{self.store(it.target, {}, it.add, value)}"

    def flat(self, it: Apply) -> Apply | None:
        """One loop instead of several, where all that is read and written lies in the loops' own order."""
        refs = [ref for ref in (it.target, *leaves(it.value)) if ref.buffer != "share"]
        extents = tuple(loop.extent for loop in it.loops)
        dense = dict(zip((loop.name for loop in it.loops), strides(extents), strict=True))
        if len(extents) < 2 or any(dict(self.plan.at(ref).terms) != dense for ref in refs):
            return None
        line = {ref: self._on_a_line(ref) for ref in refs}
        return Apply((Loop("q", prod(extents)),), line[it.target], replaced(it.value, line), it.add, it.layer)

    def _on_a_line(self, ref: Ref) -> Ref:
        """The same memory, counted by one loop."""
        place = Index((("q", 1),), self.plan.at(ref).shift)
        return Ref(ref.buffer, (*(Index() for _ in ref.index[1:]), place))

    def expression(self, value: Expression, point: dict[str, int], known: dict[Ref, str]) -> str:
        match value:
            case Number(number):
                return f"R({number!r})"
            case Ref():
                if value.buffer == "share":
                    return "g.share"
                return known.get(value) or self.load(value, point)
            case Op(sign, left, right):
                one, other = (self.expression(part, point, known) for part in (left, right))
                return f"({one} {sign} {other})"
            case Call(function, argument):
                return f"{NAMES.get(function, function)}({self.number}{{}} + {self.expression(argument, point, known)})"
        raise AssertionError(value)


def _told(statement: Statement | Turn) -> str:
    match statement:
        case Contract(target=target, left=left, right=right):
            factors = " * ".join(brackets(ref) for ref in (left, right) if ref is not None)
            return f"{statement.layer}: {brackets(target)} += {factors}"
        case Apply(target=target):
            return f"{statement.layer}: {brackets(target)}"
    return f"{statement.layer}: {type(statement).__name__.lower()}"
