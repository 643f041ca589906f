"""Loop nests as lines of C++: a contraction with its register block, an expression at every place, and the rest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
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
from paceline.kernels.plan import Plan

Lines = Iterator[str]
NAMES = {"tanh": "tanh_"}  # where C++ has a function of that name already


class Nests:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.lanes = plan, plan.target.lanes
        self.blocks: Iterator[Block] = iter(())
        self.number = "V"  # the type of what is computed at once

    # --- places ---

    def pointer(self, buffer: str) -> str:
        place = self.plan.places[buffer]
        region = {"arena": "arena", "weights": "weights", "gradient": "gradient", "lanes": "lanes"}[place.region]
        own = "V" if region in ("arena", "lanes") or self.plan.target.replicas else "R"
        cast = "" if place.element == own else f"({place.element}*)"
        return f"({cast}g.{region} + {place.start})" if place.start else f"({cast}g.{region})"

    def name(self, buffer: str) -> str:
        return "b_" + "".join(c if c.isalnum() else "_" for c in buffer)

    def declarations(self, buffers: set[str]) -> Lines:
        for buffer in sorted(buffers):
            element = self.plan.places[buffer].element
            yield f"    {element}* const {self.name(buffer)} = {self.pointer(buffer)};"

    def place(self, ref: Ref, shift: int = 0) -> str:
        return f"{self.name(ref.buffer)}[{written(self.plan.at(ref), shift)}]"

    # --- statements ---

    def function(self, name: str, statement: Statement | Turn, blocks: tuple[Block, ...]) -> Lines:
        self.blocks = iter(blocks)
        body = list(self.lines(statement, "    "))
        yield f"// {_told(statement)}"
        yield f"static __attribute__((noinline)) void {name}(Group& g) {{"
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
            case Repeat(loop=loop, body=body, backwards=backwards):
                header = (
                    f"for (int {loop.name} = {loop.extent - 1}; {loop.name} >= 0; {loop.name}--)"
                    if backwards
                    else f"for (int {loop.name} = 0; {loop.name} < {loop.extent}; {loop.name}++)"
                )
                yield f"{indent}{header} {{"
                for inner in body:
                    yield from self.lines(inner, indent + "    ")
                yield f"{indent}}}"
            case Noise(target=target, rate=rate, number=number):
                size = prod(self.plan.places[target].shape)
                yield f"{indent}for (int q = 0; q < {size}; q++)"
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

    # --- maxima ---

    def highest(self, it: Highest, indent: str) -> Lines:
        yield from self._over_windows(
            it,
            indent,
            ["V best = all(-INFINITY);"],
            [f"best = larger({self.place(it.source)}, best);"],
            [f"{self.place(it.target)} = best;"],
        )

    def route(self, it: Route, indent: str) -> Lines:
        forward = it.forward
        yield from self._over_windows(
            forward,
            indent,
            [f"V rest = {self.place(it.gradient)};", f"const V best = {self.place(forward.target)};"],
            [
                f"const V here = {self.place(forward.source)} == best ? rest : V{{}};",
                f"{self.place(it.into)} += here;",
                "rest -= here;",
            ],
            [],
        )

    def _over_windows(self, it: Highest, indent: str, before: list[str], inside: list[str], after: list[str]) -> Lines:
        for loop in it.loops:
            yield f"{indent}{opening(loop)} {{"
            indent += "    "
        yield from (indent + line for line in before)
        deep = indent
        for loop in it.window:
            yield f"{deep}{opening(loop)} {{"
            deep += "    "
        shape = self.plan.places[it.source.buffer].shape
        tests = [
            f"{written(i, 0)} < 0 || {written(i, 0)} >= {n}"
            for i, n in zip(it.source.index[1:], shape[1:], strict=True)
        ]
        yield f"{deep}if ({' || '.join(tests)}) continue;"
        yield from (deep + line for line in inside)
        for _ in it.window:
            deep = deep[:-4]
            yield f"{deep}}}"
        yield from (indent + line for line in after)
        for _ in it.loops:
            indent = indent[:-4]
            yield f"{indent}}}"

    # --- tables, meetings, the loss ---

    def lookup(self, it: Lookup, indent: str) -> Lines:
        rows, width = prod(loop.extent for loop in it.loops[:-1]), it.loops[-1].extent
        yield f"{indent}for (int q = 0; q < {rows}; q++) for (int d = 0; d < {width}; d++)"
        yield f"{indent}    for (int l = 0; l < LANES; l++)"
        table = f"{self.name(it.table)}[g.tokens[l][q] * {width} + d]"
        value = f"lane({table}, l)" if self.plan.target.replicas else table
        yield f"{indent}        set_lane({self.name(it.target.buffer)}[q * {width} + d], l, {value});"

    def scatter(self, it: Scatter, indent: str) -> Lines:
        rows, width = prod(loop.extent for loop in it.loops[:-1]), it.loops[-1].extent
        yield f"{indent}for (int q = 0; q < {rows}; q++) for (int l = 0; l < LANES; l++) {{"
        if it.padding is not None:
            yield f"{indent}    if (g.tokens[l][q] == {it.padding}) continue;"
        yield f"{indent}    for (int d = 0; d < {width}; d++) {{"
        place = f"{self.name(it.table)}[g.tokens[l][q] * {width} + d]"
        value = f"lane({self.name(it.gradient.buffer)}[q * {width} + d], l)"
        if self.plan.target.replicas:
            yield f"{indent}        set_lane({place}, l, lane({place}, l) + {value});"
        else:
            yield f"{indent}        {place} += {value};"
        yield f"{indent}    }}"
        yield f"{indent}}}"

    def meet(self, it: Meet, indent: str) -> Lines:
        """Every group makes the same sum, in the same order."""
        source = self.plan.places[it.source]
        yield f"{indent}for (int q = 0; q < {source.size}; q++) {{"
        yield f"{indent}    W sum = W{{}};"
        yield f"{indent}    for (int64_t k = 0; k < g.groups; k++) {{"
        value = f"g.first_arena[k * ARENA + {source.start} + q]"
        yield f"{indent}        sum += group_sum({value}, k, g.samples);"
        yield f"{indent}    }}"
        yield f"{indent}    {self.name(it.target)}[q] = {'g.valid * ' if it.masked else 'V{} + '}sum;"
        yield f"{indent}}}"

    def track(self, it: Track, indent: str) -> Lines:
        size = prod(self.plan.places[it.moving].shape)
        value = f"first_lane({self.name(it.value)}[q])"
        yield f"{indent}if (g.number) return;"
        yield f"{indent}const R n = R(g.samples) * {it.places};"
        yield f"{indent}const R grown = {'n / (n - 1)' if it.unbiased else 'R(1)'};"
        yield f"{indent}for (int q = 0; q < {size}; q++)"
        moving = f"{self.name(it.moving)}[q]"
        yield f"{indent}    {moving} += R({it.momentum!r}) * ({value} * grown - {moving});"

    def score(self, it: Score, indent: str) -> Lines:
        scores, gradient = self.name(it.scores), self.name(f"d_{it.scores}")
        yield f"{indent}{it.loss}<{prod(self.plan.places[it.scores].shape)}>(g, {scores}, {gradient});"

    def turn(self, it: Turn, indent: str) -> Lines:
        """A sample per row; of the network's input simply a copy."""
        *outer, size = self.plan.program.shape(it.source)
        rows, wide = prod(outer), self.plan.places[it.target].shape[-1] * self.lanes
        target = f"(R*){self.name(it.target)}"
        source = self.plan.program
        yield f"{indent}for (int t = 0; t < {rows}; t++)"
        if source.base(it.source) == "input" and not source.tokens:
            yield f"{indent}    copy_rows<{size}, {wide}>(g, t * {size}, {target} + (size_t)t * {wide * self.lanes});"
        else:
            name = self.name(it.source)
            yield f"{indent}    turn<{size}, {wide}>({name} + t * {size}, {target} + (size_t)t * {wide * self.lanes});"


# --- small words ----------------------------------------------------------------------------------------------------


def written(index: Index, shift: int) -> str:
    terms = [name if stride == 1 else f"{name} * {stride}" for name, stride in index.terms]
    total = index.shift + shift
    if total or not terms:
        terms.append(str(total))
    return " + ".join(terms)


def opening(loop: Loop) -> str:
    return f"for (int {loop.name} = 0; {loop.name} < {loop.extent}; {loop.name}++)"


def parts(loop: Loop, factor: int) -> Iterator[tuple[str, int]]:
    """(how a loop is opened, rounds written out within), for the whole blocks and for what is left over."""
    name, whole, rest = loop.name, loop.extent // factor, loop.extent % factor
    if whole > 1:
        yield f"for (int {name} = 0; {name} < {whole * factor}; {name} += {factor})", factor
    elif whole == 1:
        yield f"if (const int {name} = 0; true)", factor
    if rest:
        yield f"if (const int {name} = {whole * factor}; true)", rest


def points(rounds: dict[str, int]) -> Iterator[dict[str, int]]:
    """Every combination of the rounds that are written out."""
    names = list(rounds)
    for values in product(*(range(count) for count in rounds.values())):
        yield dict(zip(names, values, strict=True))


def shifted(index: Index, point: dict[str, int]) -> int:
    return sum(stride * point.get(name, 0) for name, stride in index.terms)


def _told(statement: Statement | Turn) -> str:
    match statement:
        case Contract(target=target, left=left, right=right):
            factors = " * ".join(_brackets(ref) for ref in (left, right) if ref is not None)
            return f"{statement.layer}: {_brackets(target)} += {factors}"
        case Apply(target=target):
            return f"{statement.layer}: {_brackets(target)}"
    return f"{statement.layer}: {type(statement).__name__.lower()}"


def _brackets(ref: Ref) -> str:
    return ref.buffer + "".join(f"[{written(index, 0)}]" for index in ref.index)
