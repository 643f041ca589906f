"""Loop nests as C++: with samples in the lanes of a vector, and with neighbouring numbers of one sample in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from paceline.kernels.blocks import Block, choose, places
from paceline.kernels.ir import Apply, Contract, Expression, Index, Loop, Ref, leaves, replaced
from paceline.kernels.printers.access import Access, Lines, flattened, opening, parts, points, shifted
from paceline.kernels.printers.access import parts as parts_of


class Nests(Protocol):
    """Prints the two statements that are loop nests."""

    def contract(self, it: Contract, block: Block, indent: str) -> Lines:
        """A sum of products for every place of the result."""
        ...

    def apply(self, it: Apply, indent: str) -> Lines:
        """An expression for every place of the result."""
        ...


class Sums:
    """The inner part of a contraction: sums in registers, the products that are added to them, and what follows."""

    def __init__(self, access: Access) -> None:
        self.access, self.plan = access, access.plan

    def block(self, it: Contract, block: Block, rounds: dict[str, int], indent: str) -> Lines:
        """All sums of one register block, from the first product to the last store."""
        number = self.access.number
        sums, where = self.named(it, rounds)
        for shift, name in sums.items():
            start = "" if it.start is None else f" + {self.access.load(it.start, where[shift])}"
            yield f"{indent}{number} {name} = {number}{{}}{start};"
        yield from self.rounds(it, block, list(it.summed()), dict(rounds), sums, indent)
        if it.first:
            yield f"{indent}if (first_of_chunk) {{"
            yield from self._ends(replace(it, add=False), sums, where, indent + "    ")
            yield f"{indent}}} else {{"
            yield from self._ends(it, sums, where, indent + "    ")
            yield f"{indent}}}"
        else:
            yield from self._ends(it, sums, where, indent)

    def _ends(self, it: Contract, sums: dict[int, str], where: dict[int, dict[str, int]], indent: str) -> Lines:
        for shift, name in sums.items():
            yield from self.finish(it, name, where[shift], indent)

    def named(self, it: Contract, rounds: dict[str, int]) -> tuple[dict[int, str], dict[int, dict[str, int]]]:
        """The results that a block makes, by their place relative to the first: names, and which rounds make them."""
        target = self.plan.at(it.target)
        names = {shift: f"s{k}" for k, shift in enumerate(sorted(places(target, rounds)))}
        return names, {shifted(target, point): point for point in points(rounds)}

    def rounds(
        self, it: Contract, block: Block, loops: list[Loop], rounds: dict[str, int], sums: dict[int, str], indent: str
    ) -> Lines:
        """The loops that are summed over, one within another."""
        if not loops:
            yield from self.multiply(it, rounds, sums, indent)
            return
        loop, *rest = loops
        for header, count in parts(loop, block.of(loop.name)):
            yield f"{indent}{header}" + " {"
            yield from self.rounds(it, block, rest, {**rounds, loop.name: count}, sums, indent + "    ")
            yield f"{indent}}}"

    def multiply(self, it: Contract, rounds: dict[str, int], sums: dict[int, str], indent: str) -> Lines:
        """The products of a block's rounds, written out; a factor that several of them share is loaded once."""
        target = self.plan.at(it.target)
        names: dict[str, str] = {}
        summed = [loop.name for loop in it.summed()]
        # Rounds of one sum stand together, in the order of its terms: the order of additions is part of the result.
        for point in sorted(points(rounds), key=lambda p: [p.get(n, 0) for n in summed]):
            factors = []
            for kind, ref in (("r", it.right), ("l", it.left)):
                if ref is None:
                    continue
                text = self.access.load(ref, point)
                if text not in names:
                    names[text] = f"{kind}{len(names)}"
                    yield f"{indent}const {self.access.element(ref)} {names[text]} = {text};"
                factors.append(names[text])
            yield f"{indent}{sums[shifted(target, point)]} += {' * '.join(reversed(factors))};"

    def finish(self, it: Contract, name: str, point: dict[str, int], indent: str) -> Lines:
        """Stores a sum, and computes what follows from it number by number while it is in a register."""
        access = self.access
        if it.keeps:
            yield f"{indent}{access.store(it.target, point, it.add or self.plan.nest(it).aliased, name)}"
        names: dict[Ref, str] = {it.target: name}
        for number, then in enumerate(it.then):
            result = f"{name}_{number}"
            value = access.expression(then.value, point, names)
            yield f"{indent}const {access.number} {result} = {access.number}{{}} + {value};"
            yield f"{indent}{access.store(then.target, point, then.add, result)}"
            names[then.target] = result


class RegisterNests:
    """Nests whose numbers are lanes of a vector, a sample in each."""

    def __init__(self, access: Access) -> None:
        self.access, self.sums = access, Sums(access)

    def contract(self, it: Contract, block: Block, indent: str) -> Lines:
        yield from self._loops(it, block, {}, indent)

    def _loops(self, it: Contract, block: Block, rounds: dict[str, int], indent: str) -> Lines:
        """Outer loops name the place in the result, inner ones are summed over."""
        fixed = it.fixed()
        if len(rounds) == len(fixed):
            yield from self.sums.block(it, block, rounds, indent)
            return
        loop = fixed[len(rounds)]
        for header, count in parts(loop, block.of(loop.name)):
            yield f"{indent}{header}" + " {"
            yield from self._loops(it, block, {**rounds, loop.name: count}, indent + "    ")
            yield f"{indent}}}"

    def apply(self, it: Apply, indent: str) -> Lines:
        it = flattened(self.access.plan, it) or it
        for loop in it.loops:
            yield f"{indent}{opening(loop)}"
            indent += "    "
        value = f"{self.access.number}{{}} + {self.access.expression(it.value, {}, {})}"
        yield f"{indent}{self.access.store(it.target, {}, it.add, value)}"


# Nests of one sample: vectors hold neighbouring numbers of it, columns of an image or units of a layer.
#
# A loop is fit for that when each number it visits is the neighbour of the last, or the same one: the columns of a
# convolution, the inputs of a dense layer. It is then done in whole vectors and one in part. Where the loop names
# places of the result, a vector of results is made at once; where it is summed over, a vector of partial sums, summed
# at the end.

FEWEST = 4  # rounds that are worth a vector
ENOUGH = 8  # rounds that make results side by side: of five columns of a kernel few lanes would be used


class PixelNests:
    """Nests whose numbers are vectors of one sample's neighbouring numbers."""

    def __init__(self, access: Access) -> None:
        self.access, self.plan = access, access.plan
        self.registers = RegisterNests(access)
        self.sums = self.registers.sums

    # --- contractions ---

    def contract(self, it: Contract, block: Block, indent: str) -> Lines:
        """The plan's block is for lanes of samples; each vectorised loop asks for a block of its own."""
        loop = self._neighbours(it)
        if loop is None:
            yield from self.registers.contract(it, self._block(it), indent)
        elif loop in it.fixed():
            for part, lanes in self._cut(it, loop):
                with self.access.vectors_along(loop.name, lanes):
                    yield from self.registers.contract(part, self._block(part), indent)
        else:
            yield from self._partial_sums(it, loop, indent)

    def _block(self, it: Contract) -> Block:
        return choose(self.plan.nest(it), self.plan.target.registers - 3)

    def _neighbours(self, it: Contract) -> Loop | None:
        """The loop whose rounds become lanes: one of the result if there is one, and the longest."""
        fit = [loop for loop in it.loops if loop.extent >= FEWEST and self._fits(it, loop.name)]
        return max(fit, key=lambda lo: (lo in it.fixed() and lo.extent >= ENOUGH, lo.extent), default=None)

    def _fits(self, it: Contract, name: str) -> bool:
        """Whether neighbouring rounds of a loop visit neighbouring numbers, or the same one."""
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
        for first, count, lanes in _vectors(loop.extent, wide):
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
        loops: list[Loop],
        rounds: dict[str, int],
        indent: str,
    ) -> Lines:
        if loops:
            for header, count in parts_of(loops[0], block.of(loops[0].name)):
                yield f"{indent}{header} {{"
                inside = {**rounds, loops[0].name: count}
                yield from self._places(it, cut, parts, block, loops[1:], inside, indent + "    ")
                yield f"{indent}}}"
            return
        sums, where = self.sums.named(it, rounds)
        for name in sums.values():
            yield f"{indent}X {name}_wide = X{{}};"
        for part, lanes in parts:
            wide = {shift: f"{name}_wide" for shift, name in sums.items()}
            with self.access.vectors_along(cut, lanes):
                yield from self.sums.rounds(part, block, list(part.summed()), dict(rounds), wide, indent)
        for shift, name in sums.items():
            start = "" if it.start is None else f"{self.access.load(it.start, where[shift])} + "
            yield f"{indent}const R {name} = {start}sum_of_lanes({name}_wide);"
            yield from self.sums.finish(it, name, where[shift], indent)

    # --- expressions ---

    def apply(self, it: Apply, indent: str) -> Lines:
        it = flattened(self.plan, it) or it
        last = it.loops[-1] if it.loops else Loop("", 0)
        refs = [ref for ref in (it.target, *leaves(it.value)) if ref.buffer != "share"]
        strides = {ref: self.plan.at(ref).of(last.name) for ref in refs}
        if last.extent < FEWEST or not set(strides.values()) <= {0, 1} or not strides[it.target]:
            yield from self.registers.apply(it, indent)
            return
        for loop in it.loops[:-1]:
            yield f"{indent}{opening(loop)}"
            indent += "    "
        yield f"{indent}{{"
        n, wide = last.name, self.plan.target.wide
        for first, count, lanes in _vectors(last.extent, wide):
            yield f"{indent}    for (int {n} = {first}; {n} < {first + count * lanes}; {n} += {lanes})"
            with self.access.vectors_along(n, lanes):
                value = f"X{{}} + {self.access.expression(it.value, {}, {})}"
                yield f"{indent}        {self.access.store(it.target, {}, it.add, value)}"
        yield f"{indent}}}"


def _vectors(extent: int, wide: int) -> list[tuple[int, int, int]]:
    """(the first number, how many vectors, numbers in each): whole vectors, then the one in part that is left."""
    vectors, rest = divmod(extent, wide)
    return [each for each in ((0, vectors, wide), (vectors * wide, 1, rest)) if each[1] and each[2]]


def _spread(it: Contract, name: str, wide: int, first: int, count: int) -> Contract:
    """The same contraction of `count` vectors from place `first` on: the loop counts vectors."""

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
