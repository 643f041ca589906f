"""How the threads of a GPU's block share the statements of one sample.

What differs from C++ is which thread goes through which rounds: the places of a result are dealt out to the threads of
a block, each of which keeps a register block of them; all wait for each other before the next statement.

    few places, long sums      neighbouring threads share a sum, and add their parts up as a tree
    places that rounds share   as the gradient of a convolution's input: each place gathers its terms, instead of each
                               round adding to its places

So every number is written by one thread, its terms in the same order always, and no two runs differ by a bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from paceline.kernels.blocks import Block, Nest, choose, collide, places
from paceline.kernels.ir import Apply, Contract, Index, Loop, Loops, Ref, Scatter, Statement, Transpose
from paceline.kernels.memory import used_by, written_by
from paceline.kernels.plan import Plan
from paceline.kernels.printers.access import Access, Lines, flattened, opening
from paceline.kernels.printers.nests import Sums

CALL = 256  # bytes of a block's own memory for what it is called with


@dataclass(frozen=True)
class Own:
    """What lies in a block's own memory: a sample's numbers; and then the weights and their gradient, too."""

    arena: bool = False
    weights: bool = False

    def bytes(self, plan: Plan) -> int:
        """How much of a block's own memory all of this takes."""
        numbers = self.arena * plan.sizes["arena"] + 2 * self.weights * plan.sizes["weights"]
        return CALL + numbers * plan.target.bytes


class BlockThreads:
    """The threads of a block, which share the rounds of a sample and wait for each other at barriers."""

    function = "FUNCTION void"

    def __init__(self, access: Access) -> None:
        self.access = access
        #: Buffers that were read or written since the last barrier, and those of them that were written.
        self.touched: set[str] = set()
        self.written: set[str] = set()

    def wait(self, indent: str, before: Statement | Transpose | None = None) -> Lines:
        """A barrier, unless the statement has nothing to do with what was read and written since the last one."""
        touched, written = (self._bases(names(before)) if before else set() for names in (_used, written_by))
        if before is None or self.touched & written or self.written & touched:
            yield f"{indent}SYNC;"
            self.touched, self.written = set(), set()
        self.touched |= touched
        self.written |= written

    def _bases(self, names: set[str]) -> set[str]:
        return {self.access.plan.program.base(name) for name in names}

    def opened(self, loops: Loops, inside: Loops, written_to: Ref) -> tuple[list[str], int]:
        """Rounds that write to places of their own are dealt out; one thread goes through the others."""
        dealt = loops
        if collide(written_to, (*loops, *inside)):
            dealt = tuple(loop for loop in loops if any(i.terms == ((loop.name, 1),) for i in written_to.index))
        rest = [loop for loop in loops if loop not in dealt]
        lines = [*dealt_out(dealt), *("    " * (d + 1) + opening(loop) + " {" for d, loop in enumerate(rest))]
        return lines, 1 + len(rest)

    def each(self, size: int) -> str:
        return f"for (int q = THREAD; q < {size}; q += THREADS)"

    def scatter(self, it: Scatter, indent: str) -> Lines:
        """A thread has its column of the table, since a token may occur twice."""
        name, token = self.access.name, self.access.token(it.numbers, "0")
        rows, width = prod(loop.extent for loop in it.loops[:-1]), it.loops[-1].extent
        yield f"{indent}for (int d = THREAD; d < {width}; d += THREADS) for (int q = 0; q < {rows}; q++) {{"
        if it.padding is not None:
            yield f"{indent}    if ({token} == {it.padding}) continue;"
        value = f"{name(it.gradient.buffer)}[q * {width} + d]"
        yield f"{indent}    {name(it.table)}[{token} * {width} + d] += {value};"
        yield f"{indent}}}"


class DeviceThreads:
    """Deals the rounds of a published nest out to all threads of the device."""

    def dealt(self, loops: Loops, target: Ref, fixed: Loops, body: list[str], indent: str) -> Lines:
        yield from (indent + line for line in (*dealt_out(loops), *("    " + line for line in body), "}"))


class BlockNests:
    """Nests whose places are dealt out to the threads of a block."""

    def __init__(self, access: Access, block: BlockThreads, threads: int, shared_memory: Own) -> None:
        self.access, self.plan, self.sums = access, access.plan, Sums(access)
        self.block, self.threads, self.own = block, threads, shared_memory

    # --- contractions ---

    def contract(self, it: Contract, block: Block, indent: str) -> Lines:
        if self.plan.nest(it).aliased:
            yield from self._gathered(it, indent)
            return
        dealt = self._deal(it)
        for spans in product(*(spans_of(loop, dealt.block.of(loop.name)) for loop in dealt.order)):
            rounds = {loop.name: count for loop, (_, _, count) in zip(dealt.order, spans, strict=True)}
            if dealt.parts > 1:
                yield from self._together(it, dealt, spans, rounds, indent)
            else:
                yield from (indent + line for line in dealt_out(dealt.order, spans))
                yield from self.sums.block(it, dealt.block, rounds, indent + "    ")
                yield f"{indent}}}"

    def _deal(self, it: Contract) -> Deal:
        near = [ref is not None and self._near(ref.buffer) for ref in (it.left, it.right, it.target)]
        return deal(CallSite(self.plan.nest(it), *near), self.threads)

    def _near(self, buffer: str) -> bool:
        """Whether a buffer lies in the block's own memory or in registers."""
        place = self.plan.places.get(buffer)  # what never leaves the registers has none
        return place is None or (self.own.arena if place.region == "arena" else self.own.weights)

    def _together(
        self, it: Contract, dealt: Deal, spans: tuple[Span, ...], rounds: dict[str, int], indent: str
    ) -> Lines:
        """Each sum by neighbouring threads, all of which go the same number of rounds: they add up together."""
        parts = dealt.parts
        at_once = [(loop.name, dealt.block.of(loop.name)) for loop in it.summed()]
        summed = [(0, loop.extent // dealt.block.of(loop.name), dealt.block.of(loop.name)) for loop in it.summed()]
        tasks, terms = (prod(count for _, count, _ in some) for some in (spans, summed))
        sums, where = self.sums.named(it, rounds)
        yield f"{indent}for (int first = 0; first < {tasks}; first += THREADS / {parts}) {{"
        deep = indent + "    "
        yield f"{deep}const int item = first + THREAD / {parts}, part = THREAD % {parts};"
        yield from (deep + line for line in decoded(dealt.order, "item", spans))
        yield f"{deep}R {', '.join(f'{name} = 0' for name in sums.values())};"
        yield f"{deep}if (item < {tasks}) for (int term = part; term < {terms}; term += {parts}) {{"
        yield from (deep + "    " + line for line in decoded(it.summed(), "term", tuple(summed)))
        yield from self.sums.multiply(it, {**rounds, **dict(at_once)}, sums, deep + "    ")
        yield f"{deep}}}"
        yield from (f"{deep}{name} = sum_of_parts<{parts}>({name});" for name in sums.values())
        yield f"{deep}if (item < {tasks} && part == 0) {{"
        for shift, name in sums.items():
            if it.start is not None:
                yield f"{deep}    {name} += {self.access.load(it.start, where[shift])};"
            yield from self.sums.finish(it, name, where[shift], deep + "    ")
        yield f"{deep}}}"
        yield f"{indent}}}"

    def _gathered(self, it: Contract, indent: str) -> Lines:
        """Each place of the result asks which rounds would have added to it."""
        gather_dims = _asked(it)
        names = [name for index in it.target.index for name, _ in index.terms]
        if len(set(names)) < len(names):  # a loop that moves two dimensions at once
            yield from self._one_by_one(it, indent)
            return
        shape = self.plan.places[it.target.buffer].shape
        moved = {term[0] for one in gather_dims for term in one.index.terms}
        outer_loops = tuple(loop for loop in it.fixed() if loop.name not in moved)
        places = tuple(Loop(one.place, shape[one.dimension]) for one in gather_dims)
        index = {one.dimension: Index(((one.place, 1),)) for one in gather_dims}
        target = Ref(it.target.buffer, tuple(index.get(d, each) for d, each in enumerate(it.target.index)))
        factors = " * ".join(self.access.place(ref) for ref in (it.left, it.right) if ref is not None)
        body = [line for one in gather_dims for line in one.lines()]
        body += [*(opening(loop) + " {" for loop in it.summed()), f"sum += {factors};"]
        yield from (indent + line for line in dealt_out((*outer_loops, *places)))
        yield f"{indent}    R sum = 0;"
        yield from _nested(body, indent + "    ")
        yield f"{indent}    {self.access.store(target, {}, it.add, 'sum')}"
        yield f"{indent}}}"

    def _one_by_one(self, it: Contract, indent: str) -> Lines:
        factors = " * ".join(self.access.place(ref) for ref in (it.left, it.right) if ref is not None)
        yield from self._each_round(it.loops, it.target, f"{self.access.place(it.target)} += {factors};", indent)

    def _each_round(self, loops: Loops, target: Ref, line: str, indent: str) -> Lines:
        headers, depth = self.block.opened(loops, (), target)
        yield from (indent + header for header in headers)
        yield f"{indent}{'    ' * depth}{line}"
        yield from (f"{indent}{'    ' * level}}}" for level in reversed(range(depth)))

    def apply(self, it: Apply, indent: str) -> Lines:
        it = flattened(self.plan, it) or it
        line = self.access.store(it.target, {}, it.add, self.access.expression(it.value, {}, {}))
        yield from self._each_round(it.loops, it.target, line, indent)


def _used(statement: Statement | Transpose) -> set[str]:
    return used_by([statement])


# rounds dealt out.


def dealt_out(loops: Loops, spans: tuple[Span, ...] | None = None) -> list[str]:
    """Opens one loop for all rounds of several; a thread takes each THREADS-th."""
    spans = spans or tuple((0, loop.extent, 1) for loop in loops)
    total = prod(count for _, count, _ in spans)
    opened = f"for (int item = THREAD; item < {total}; item += THREADS) {{"
    return [opened, *("    " + line for line in decoded(loops, "item", spans))]


def decoded(loops: Loops, name: str, spans: tuple[Span, ...] | None = None) -> list[str]:
    """The round of each loop that a number stands for."""
    spans = spans or tuple((0, loop.extent, 1) for loop in loops)
    lines, step = [], 1
    for number, (loop, (first, count, factor)) in reversed(list(enumerate(zip(loops, spans, strict=True)))):
        digit = name if step == 1 else f"{name} / {step}"
        digit += f" % {count}" if number else ""
        value = " + ".join(filter(None, (str(first) if first else "", f"{digit} * {factor}" if factor > 1 else digit)))
        lines.append(f"const int {loop.name} = {value if count > 1 else first};")
        step *= count
    return lines


# places that ask.


@dataclass(frozen=True)
class Asked:
    """A dimension of the result that several loops move. From a place, and from the rounds of all but one of them, it
    follows which round of that one leads there, if any does.
    """

    dimension: int
    index: Index
    loop: Loop  # the one: the longest, so that its rounds need not be visited
    others: Loops

    @property
    def place(self) -> str:
        return f"place{self.dimension}"

    def lines(self) -> Iterator[str]:
        name, stride = self.loop.name, self.index.of(self.loop.name)
        yield from (opening(loop) + " {" for loop in self.others)
        away = "".join(f" - {self.index.of(loop.name)} * {loop.name}" for loop in self.others)
        yield f"const int way_{name} = {self.place} - {self.index.shift}{away};"
        yield f"const int {name} = way_{name} / {stride};"
        yield f"if (way_{name} < 0 || way_{name} % {stride} || {name} >= {self.loop.extent}) continue;"


def _asked(it: Contract) -> list[Asked]:
    """The dimensions of the result that several loops move."""
    extents = {loop.name: loop for loop in it.loops}
    gather_dims = []
    for dimension, index in enumerate(it.target.index):
        if len(index.terms) > 1:
            *others, longest = sorted((extents[name] for name, _ in index.terms), key=lambda loop: loop.extent)
            gather_dims.append(Asked(dimension, index, longest, tuple(others)))
    return gather_dims


def _nested(lines: Iterable[str], indent: str) -> Iterator[str]:
    """Each line that opens a loop has all that follow within it."""
    depth = 0
    for line in lines:
        yield f"{indent}{'    ' * depth}{line}"
        depth += line.endswith("{")
    yield from (f"{indent}{'    ' * level}}}" for level in reversed(range(depth)))


# How a nest is dealt out to the threads of a block: how many results each keeps, how many neighbours share a sum, and
# which loop goes from one thread to the next. All of them are tried, and the least of a plain count of a
# multiprocessor's cycles is taken.
#
# It can begin so many instructions in a cycle, and one load of 32 threads from its own memory, if no two of them want
# different numbers of one bank; from afar, a line of memory. A thread alone waits for each of its loads and sums.

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
