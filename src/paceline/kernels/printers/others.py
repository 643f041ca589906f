"""The statements that are not nests of sums or expressions: maxima, tables, meetings, the loss."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from paceline.kernels.blocks import Block
from paceline.kernels.ir import Highest, Lookup, Loops, Meet, Ref, Route, Scatter, Score, Track
from paceline.kernels.memory import Turn
from paceline.kernels.plan import Plan
from paceline.kernels.printers.words import opening, written

Lines = Iterator[str]


class Others:
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

    # --- maxima ---

    def highest(self, it: Highest, indent: str) -> Lines:
        yield from self._over_windows(
            it,
            it.target,
            indent,
            ["V best = all(-INFINITY);"],
            [f"best = larger({self.place(it.source)}, best);"],
            [f"{self.place(it.target)} = best;"],
        )

    def route(self, it: Route, indent: str) -> Lines:
        forward = it.forward
        yield from self._over_windows(
            forward,
            it.into,
            indent,
            [f"V rest = {self.place(it.gradient)};", f"const V best = {self.place(forward.target)};"],
            [
                f"const V here = {self.place(forward.source)} == best ? rest : V{{}};",
                f"{self.place(it.into)} += here;",
                "rest -= here;",
            ],
            [],
        )

    def _over_windows(
        self, it: Highest, written_to: Ref, indent: str, before: list[str], inside: list[str], after: list[str]
    ) -> Lines:
        headers, depth = self.opened(it.loops, it.window, written_to)
        yield from (indent + line for line in headers)
        indent += "    " * depth
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
        for _ in range(depth):
            indent = indent[:-4]
            yield f"{indent}}}"

    # --- how rounds are gone through ---

    def opened(self, loops: Loops, inside: Loops, written_to: Ref) -> tuple[list[str], int]:
        """(lines that open all rounds of the loops, how deep they are). `inside` are loops that the caller opens
        within, `written_to` is the place that all of them write to.
        """
        return ["    " * depth + opening(loop) + " {" for depth, loop in enumerate(loops)], len(loops)

    def each(self, size: int) -> str:
        """Opens the rounds of one plain count, q."""
        return f"for (int q = 0; q < {size}; q++)"

    # --- tables, meetings, the loss ---

    def lookup(self, it: Lookup, indent: str) -> Lines:
        rows, width = prod(loop.extent for loop in it.loops[:-1]), it.loops[-1].extent
        yield f"{indent}{self.each(rows)} for (int d = 0; d < {width}; d++)"
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
        yield f"{indent}{self.each(source.size)} {{"
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
        yield f"{indent}{self.each(size)}"
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
