"""Register blocks: how many rounds of which loops of a contraction are done at once, in registers.

A round of the loops that are blocked needs so many sums (numbers of the target), so many loads of the left and the
right factor, and one multiply-add for each combination. A load is shared by all combinations that name the same place,
which is what a block is for: eight neighbouring columns under five taps need twelve loads for forty multiply-adds. The
cheapest block by this count, among those whose numbers fit into the registers, is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product
from math import inf, prod

from paceline.kernels.ir import Index, Loop, Loops, Ref

FACTORS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24)
UNROLLED = 8  # a loop up to so long may be unrolled whole
LATENCY = 8  # multiply-adds under way at once, before a sum can be added to again
LOAD = (0.12, 0.25)  # what a load costs beside the multiply-adds, of a number and of a vector
SETS = 64  # of the nearest cache: vectors that are so far apart are in each other's way
LARGEST = 160  # multiply-adds in one block: longer text compiles slowly


@dataclass(frozen=True)
class Block:
    """A register block: how many rounds of which loops are done at once."""

    factors: tuple[tuple[str, int], ...]  # loop -> rounds at once

    def of(self, loop: str) -> int:
        """How many rounds of a loop are done at once."""
        return dict(self.factors).get(loop, 1)

    def has(self, loop: str) -> bool:
        """Whether the block names a loop."""
        return any(name == loop for name, _ in self.factors)

    def __str__(self) -> str:
        return " x ".join(f"{factor} {loop}" for loop, factor in self.factors) or "1"


@dataclass(frozen=True)
class Nest:
    """A contraction with its references as places in flat memory."""

    loops: Loops
    target: Index
    left: Index | None
    right: Index
    aliased: bool  # several rounds add to one place, which must be done in memory
    left_wide: bool = False  # whether a load of the left factor is a vector from memory, or one number
    right_wide: bool = False

    @cached_property
    def fixed(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if self.target.of(loop.name))

    @cached_property
    def named(self) -> frozenset[str]:
        """The loops that the target is named by."""
        return frozenset(loop.name for loop in self.fixed)

    @cached_property
    def summed(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if not self.target.of(loop.name))

    @cached_property
    def terms(self) -> int:
        """How many terms a sum has."""
        return prod(loop.extent for loop in self.summed)


def collide(target: Ref, loops: Loops) -> bool:
    """Whether two rounds of the loops that the target names may write to the same place."""
    extents = {loop.name: loop.extent for loop in loops}
    for index in target.index:
        places = [index.shift]
        for name, stride in index.terms:
            places = [p + stride * k for p in places for k in range(extents.get(name, 1))]
        if len(set(places)) != len(places):
            return True
    return False


@lru_cache(maxsize=4096)
def choose(nest: Nest, registers: int) -> Block:
    """The cheapest block whose numbers fit into so many registers."""
    best, least = Block(()), cost(nest, Block(()), registers)
    for block in _candidates(nest, registers):
        price = cost(nest, block, registers, least * 0.999)
        if price < least * 0.999:
            best, least = block, price
    return best


def _candidates(nest: Nest, registers: int) -> Iterator[Block]:
    """All blocks that are worth counting."""
    wide = [loop for loop in reversed(nest.fixed) if loop.extent > 1]  # of equals, neighbours in memory are taken
    short = [loop for loop in reversed(nest.loops) if 1 < loop.extent <= UNROLLED]
    pairs: list[tuple[Loop, ...]] = [(), *((loop,) for loop in wide), *combinations(wide, 2)]
    for chosen in pairs:
        choices = [[f for f in FACTORS if f < loop.extent] + [loop.extent] for loop in chosen]
        for factors in product(*choices):
            if prod(factors) > registers:
                continue
            base = {loop.name: factor for loop, factor in zip(chosen, factors, strict=True)}
            yield Block(tuple(base.items()))
            for loop in short:
                if loop.name not in base and prod(factors) * loop.extent <= LARGEST:
                    yield Block((*base.items(), (loop.name, loop.extent)))


def cost(nest: Nest, block: Block, registers: int, limit: float = inf) -> float:
    """Half cycles of a core with two pipes: the larger of loads and multiply-adds, and what the ends cost. Counting
    stops at the limit.
    """
    total = 0.0
    sizes = []
    for loop in nest.loops:
        factor = block.of(loop.name)
        blocks, rest = divmod(loop.extent, factor)
        sizes.append([(loop.name, n, f) for n, f in ((blocks, factor), (1, rest)) if n and f])
    for combination in product(*sizes):
        total += _part(nest, combination, registers)
        if total >= limit:
            break
    return total


def _part(nest: Nest, parts: tuple[tuple[str, int, int], ...], registers: int) -> float:
    rounds = tuple((name, factor) for name, _, factor in parts if factor > 1)
    sums, rights = _count(nest.target, rounds), _count(nest.right, rounds)
    lefts = _count(nest.left, rounds) if nest.left is not None else 0
    work = prod(factor for _, factor in rounds)
    inner = outer = 1
    for name, n, _ in parts:
        if name in nest.named:
            outer *= n
        else:
            inner *= n
    once = max(float(work), float(lefts + rights), LATENCY * work / sums if inner > 1 else 0.0)
    crowd = sums + min(rights, lefts or rights) + 1
    spilled = 2.0 * max(0, crowd - registers)
    loads = LOAD[nest.left_wide] * lefts + LOAD[nest.right_wide] * rights
    each_round = once + loads + spilled + 1.0
    ends = (3.0 if nest.aliased else 2.0) * sums + _crowded(nest.target, rounds)
    return outer * (inner * each_round + ends)


@lru_cache(maxsize=65536)
def _count(index: Index, rounds: tuple[tuple[str, int], ...]) -> int:
    return len(places(index, dict(rounds)))


@lru_cache(maxsize=65536)
def _crowded(index: Index, rounds: tuple[tuple[str, int], ...]) -> int:
    """How many places share their set of the nearest cache with others, as rows of 64 vectors do."""
    return _count(index, rounds) - len({place % SETS for place in places(index, dict(rounds))})


def places(index: Index, extents: dict[str, int]) -> set[int]:
    """The distinct places, relative to the first, that a block names."""
    offsets = {0}
    for name, stride in index.terms:
        extent = extents.get(name, 1)
        if extent > 1:
            offsets = {p + stride * k for p in offsets for k in range(extent)}
    return offsets
