"""Nests of one sample: vectors hold neighbouring numbers of it, columns of an image or units of a layer.

A loop is fit for that when each number it visits is the neighbour of the last, or the same one: the columns of a
convolution, the inputs of a dense layer. It is then done in whole vectors and one in part. Where the loop names places
of the result, a vector of results is made at once; where it is summed over, a vector of partial sums, added up at the
end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paceline.kernels.blocks import Block, choose
from paceline.kernels.ir import Apply, Contract, Expression, Index, Loop, Ref, leaves, replaced
from paceline.kernels.plan import Plan
from paceline.kernels.printers.nests import Nests
from paceline.kernels.printers.words import opening, shifted
from paceline.kernels.printers.words import parts as parts_of

Lines = Iterator[str]
FEWEST = 4  # rounds that are worth a vector


class Pixels(Nests):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.number = "R"
        self.wide: tuple[str, int] = ("", 0)  # the loop whose rounds are lanes now, and how many there are

    # --- loads and stores ---

    def _is_wide(self, ref: Ref) -> bool:
        return bool(self.plan.at(ref).of(self.wide[0]))

    def element(self, ref: Ref) -> str:
        return "X" if self._is_wide(ref) else "R"

    def load(self, ref: Ref, point: dict[str, int]) -> str:
        place = super().load(ref, point)
        return f"wide<{self.wide[1]}>(&{place})" if self._is_wide(ref) else place

    def store(self, ref: Ref, point: dict[str, int], add: bool, value: str) -> str:
        if not self._is_wide(ref):
            return super().store(ref, point, add, value)
        place = self.place(ref, shifted(self.plan.at(ref), point))
        return f"put<{self.wide[1]}>(&{place}, {self.load(ref, point) + ' + ' if add else ''}{value});"

    # --- contractions ---

    def contract(self, it: Contract, block: Block, indent: str) -> Lines:
        loop = self._neighbours(it)
        if loop is None:
            yield from super().contract(it, self._block(it), indent)
        elif loop in it.fixed():
            for part, lanes in self._cut(it, loop):
                self.wide, self.number = (loop.name, lanes), "X"
                yield from super().contract(part, self._block(part), indent)
                self.wide, self.number = ("", 0), "R"
        else:
            yield from self._partial_sums(it, loop, indent)

    def _block(self, it: Contract) -> Block:
        return choose(self.plan.nest(it), self.plan.target.registers - 3)

    def _neighbours(self, it: Contract) -> Loop | None:
        """The loop whose rounds become lanes: of the result if there is one, and the longest."""
        fit = [loop for loop in it.loops if loop.extent >= FEWEST and self._fits(it, loop.name)]
        wide = self.plan.target.wide
        return max(fit, key=lambda lo: (lo in it.fixed() and lo.extent >= wide // 2, lo.extent), default=None)

    def _fits(self, it: Contract, name: str) -> bool:
        refs = [ref for ref in (it.target, it.left, it.right, it.start) if ref is not None]
        refs += [ref for then in it.then for ref in (then.target, *leaves(then.value))]
        strides = {ref: self.plan.at(ref).of(name) for ref in refs if ref.buffer != "share"}
        if not set(strides.values()) <= {0, 1}:
            return False
        if strides[it.target]:
            return all(strides[then.target] for then in it.then)
        return bool(strides[it.right] and (it.left is None or strides[it.left]))

    def _cut(self, it: Contract, loop: Loop) -> Iterator[tuple[Contract, int]]:
        """The contraction over whole vectors, and over the one in part that is left."""
        wide = self.plan.target.wide
        whole, rest = divmod(loop.extent, wide)
        for first, count, lanes in ((0, whole, wide), (whole * wide, 1, rest)):
            if count and lanes:
                yield _spread(it, loop.name, wide, first, count), lanes

    def _partial_sums(self, it: Contract, loop: Loop, indent: str) -> Lines:
        """Vectors of partial sums, over the whole vectors and the rest; then across."""
        parts = list(self._cut(it, loop))
        block = self._block(replace(parts[0][0], then=()))
        fixed = Block(tuple((n, f) for n, f in block.factors if n in it.target.loops()))
        yield from self._places(it, loop.name, parts, fixed, list(it.fixed()), {}, indent)

    def _places(
        self,
        it: Contract,
        cut: str,
        parts: list[tuple[Contract, int]],
        block: Block,
        left: list[Loop],
        rounds: dict[str, int],
        indent: str,
    ) -> Lines:
        if left:
            for header, count in parts_of(left[0], block.of(left[0].name)):
                yield f"{indent}{header} {{"
                inside = {**rounds, left[0].name: count}
                yield from self._places(it, cut, parts, block, left[1:], inside, indent + "    ")
                yield f"{indent}}}"
            return
        sums, where = self.sums(it, rounds)
        for name in sums.values():
            yield f"{indent}X {name}_wide = X{{}};"
        for part, lanes in parts:
            self.wide = (cut, lanes)
            wide = {shift: f"{name}_wide" for shift, name in sums.items()}
            yield from self._inner(part, block, list(part.summed()), dict(rounds), wide, indent)
            self.wide = ("", 0)
        for shift, name in sums.items():
            start = "" if it.start is None else f"{self.load(it.start, where[shift])} + "
            yield f"{indent}const R {name} = {start}sum_of_lanes({name}_wide);"
            yield from self._finish(it, name, where[shift], indent)

    # --- expressions ---

    def apply(self, it: Apply, indent: str) -> Lines:
        it = self.flat(it) or it
        last = it.loops[-1] if it.loops else Loop("", 0)
        refs = [ref for ref in (it.target, *leaves(it.value)) if ref.buffer != "share"]
        strides = {ref: self.plan.at(ref).of(last.name) for ref in refs}
        if last.extent < FEWEST or not set(strides.values()) <= {0, 1} or not strides[it.target]:
            yield from super().apply(it, indent)
            return
        for loop in it.loops[:-1]:
            yield f"{indent}{opening(loop)}"
            indent += "    "
        yield f"{indent}{{"
        n, wide = last.name, self.plan.target.wide
        whole, rest = divmod(last.extent, wide)
        for first, count, lanes in ((0, whole, wide), (whole * wide, 1, rest)):
            if not count or not lanes:
                continue
            self.wide, self.number = (n, lanes), "X"
            yield f"{indent}    for (int {n} = {first}; {n} < {first + count * lanes}; {n} += {lanes})"
            value = f"X{{}} + {self.expression(it.value, {}, {})}"
            yield f"{indent}        {self.store(it.target, {}, it.add, value)}"
            self.wide, self.number = ("", 0), "R"
        yield f"{indent}}}"


def _spread(it: Contract, name: str, wide: int, first: int, count: int) -> Contract:
    """The same, of `count` vectors from place `first` on: the loop counts vectors."""

    def moved(ref: Ref) -> Ref:
        return Ref(ref.buffer, tuple(_widened(index, name, wide, first) for index in ref.index))

    def also(value: Expression) -> Expression:
        return replaced(value, {ref: moved(ref) for ref in leaves(value)})

    return replace(
        it,
        loops=tuple(Loop(name, count) if loop.name == name else loop for loop in it.loops),
        target=moved(it.target),
        left=moved(it.left) if it.left is not None else None,
        right=moved(it.right),
        start=moved(it.start) if it.start is not None else None,
        then=tuple(replace(a, target=moved(a.target), value=also(a.value)) for a in it.then),
    )


def _widened(index: Index, name: str, wide: int, first: int) -> Index:
    terms = tuple((n, stride * wide if n == name else stride) for n, stride in index.terms)
    return Index(terms, index.shift + first * index.of(name))
