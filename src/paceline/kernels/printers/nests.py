"""Loop nests as C++: a contraction keeps a block of its results in registers, an expression is done at every place."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from paceline.kernels.blocks import Block, places
from paceline.kernels.ir import Apply, Contract, Loop, Ref
from paceline.kernels.printers.access import Access, Lines, flattened, opening, parts, points, shifted


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
