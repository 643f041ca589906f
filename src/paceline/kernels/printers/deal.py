"""How a nest is dealt out to the threads of a block: how many results each keeps, how many neighbours share a sum, and
which loop goes from one thread to the next. All of them are tried, and the least of a plain count of a
multiprocessor's cycles is taken.

It can begin so many instructions in a cycle, and one load of 32 threads from its own memory, if no two of them want
different numbers of one bank; from afar, a line of memory. A thread alone waits for each of its loads and sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from paceline.kernels.blocks import Block, Nest, choose, places
from paceline.kernels.ir import Index, Loop, Loops

PARTS = (1, 2, 4, 8, 16, 32)  # threads that may share a sum
WORTH = 4  # terms that are worth another thread's while
BUDGETS = (2, 4, 6, 8, 12, 16, 24, 32)  # results that a thread may keep
TERMS = (2, 4, 8)  # of a sum, at once
REGISTERS = 80  # numbers of a block, beside which there are places
WARP = 32  # threads that go in step; banks of a block's own memory, and numbers of a line
WAYS = 4  # warps that begin an instruction in a cycle
LOAD, ADD, SHUFFLE = 30, 4, 25  # cycles until its result is there
AHEAD = 4  # rounds of a short loop whose loads the compiler asks for together


@dataclass(frozen=True)
class Deal:
    """A way to deal a nest out."""

    block: Block
    parts: int  # threads that share a sum
    order: Loops  # of the places; the last goes from a thread to its neighbour


Span = tuple[int, int, int]  # the first round of a loop, how many blocks follow, how many rounds has each


def spans_of(loop: Loop, factor: int) -> list[Span]:
    """Whole blocks of a loop, and what is left over."""
    blocks, rest = divmod(loop.extent, factor)
    return [span for span in ((0, blocks, factor), (blocks * factor, 1, rest)) if span[1] and span[2]]


@dataclass(frozen=True)
class CallSite:
    """A nest, and which of its factors and its result lie near."""

    nest: Nest
    left_near: bool
    right_near: bool
    target_near: bool


@lru_cache(maxsize=4096)
def deal(operands: CallSite, threads: int) -> Deal:
    """The cheapest way to deal a nest out to so many threads."""
    return min(_deals(operands.nest), key=lambda each: cycles(operands, each, threads))


def _deals(nest: Nest) -> Iterator[Deal]:
    orders = [(*(other for other in nest.fixed if other != loop), loop) for loop in nest.fixed] or [()]
    for block in _blocks(nest):
        for parts in PARTS:
            if parts == 1 or nest.terms >= parts * WORTH:
                yield from (Deal(block if parts == 1 else _whole(nest, block), parts, order) for order in orders)


def _blocks(nest: Nest) -> Iterator[Block]:
    """The blocks with the fewest loads for their results, also with a few terms at once."""
    for block in dict.fromkeys((Block(()), *(choose(nest, budget) for budget in BUDGETS))):
        yield block
        for loop in nest.summed:
            for factor in TERMS:
                more = Block((*block.factors, (loop.name, factor)))
                if loop.extent > factor and not block.has(loop.name) and _numbers(nest, more) <= REGISTERS:
                    yield more


def _numbers(nest: Nest, block: Block) -> int:
    rounds = dict(block.factors)
    indices = (nest.target, nest.right, *([nest.left] if nest.left is not None else []))
    return sum(len(places(index, rounds)) for index in indices)


def _whole(nest: Nest, block: Block) -> Block:
    """The block without factors that would leave a rest: threads that share a sum all take the same number of steps."""
    extents = {loop.name: loop.extent for loop in nest.summed}
    return Block(tuple((name, factor) for name, factor in block.factors if extents.get(name, factor) % factor == 0))


def cycles(operands: CallSite, dealt: Deal, threads: int) -> float:
    """The count for whole blocks and for what is left over, one after the other."""
    every = product(*(spans_of(loop, dealt.block.of(loop.name)) for loop in dealt.order))
    return sum(_cycles(operands, dealt, spans, threads) for spans in every)


def _cycles(operands: CallSite, dealt: Deal, spans: tuple[Span, ...], threads: int) -> float:
    nest, parts = operands.nest, dealt.parts
    summed = {loop.name: dealt.block.of(loop.name) for loop in nest.summed}
    rounds = summed | {loop.name: count for loop, (_, _, count) in zip(dealt.order, spans, strict=True)}
    tasks, steps = prod(count for _, count, _ in spans), -(-nest.terms // (parts * prod(summed.values())))
    sums, products = len(places(nest.target, rounds)), prod(rounds.values())
    lanes = _lanes(nest, dealt, spans)
    factors = [(nest.right, operands.right_near), *([(nest.left, operands.left_near)] if nest.left is not None else [])]
    loads = [(len(places(index, rounds)), _waves(index, lanes, near)) for index, near in factors]
    stored = sums * _waves(nest.target, lanes, operands.target_near)
    depth = parts.bit_length() - 1
    work = steps * (sum(n for n, _ in loads) + products + (8 if parts > 1 else 3)) + sums * (4 + 2 * depth) + 12
    memory = steps * sum(n * waves for n, waves in loads) + stored
    alone = LOAD * (2 + steps / AHEAD) + ADD * steps * products / sums + SHUFFLE * depth
    total, remaining = 0.0, -(-tasks * parts // WARP)
    while remaining > 0:
        warps = min(remaining, threads // WARP)
        total += max(alone, warps / WAYS * work, warps * memory)
        remaining -= warps
    return total


def _lanes(nest: Nest, dealt: Deal, spans: tuple[Span, ...]) -> list[dict[str, int]]:
    """The rounds that the threads of a warp begin with."""
    parts = dealt.parts
    counts = [(loop.name, count, each) for loop, (_, count, each) in zip(dealt.order, spans, strict=True)]
    terms = [
        (loop.name, -(-loop.extent // dealt.block.of(loop.name)), dealt.block.of(loop.name)) for loop in nest.summed
    ]
    return [
        {**_digits(thread // parts, counts), **(_digits(thread % parts, terms) if parts > 1 else {})}
        for thread in range(min(WARP, prod(count for _, count, _ in counts) * parts))
    ]


def _digits(number: int, counts: list[tuple[str, int, int]]) -> dict[str, int]:
    offsets = {}
    for name, count, factor in reversed(counts):
        offsets[name] = number % count * factor
        number //= count
    return offsets


def _waves(index: Index, lanes: list[dict[str, int]], near: bool) -> int:
    """How often memory has to be asked until all threads of a warp have their number."""
    addresses = {sum(stride * lane.get(name, 0) for name, stride in index.terms) for lane in lanes}
    return (
        max(Counter(place % WARP for place in addresses).values())
        if near
        else len({place // WARP for place in addresses})
    )
