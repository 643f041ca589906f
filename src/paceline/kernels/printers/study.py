"""The text of a published study: every layer a parallel step of its own, by threads, or by ranks of MPI.

    outputs   each place of the result by one thread, all its terms summed there ("output stationary")
    inputs    each channel of the result by one thread, the loops that are summed over outside: an input and a weight
              stay while all results of the channel that they enter are added to ("input stationary")

With one thread it is the sequential program that speed-ups are measured against. Ranks of MPI share each layer's
places; `kernels/cuda/gpu.py` has the same on a GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import NamedTuple, Protocol

from paceline.kernels.blocks import Block
from paceline.kernels.ir import Apply, Contract, Index, Kind, Loops, Ref, Statement, Transpose, leaves
from paceline.kernels.memory import used_by
from paceline.kernels.plan import Plan
from paceline.kernels.printers.access import Access, Lines, OneThread, flattened, opening, written
from paceline.kernels.printers.printer import Printer


class Dealing(Protocol):
    """Shares the rounds of a published nest among threads or ranks."""

    def dealt(self, loops: Loops, target: Ref, fixed: Loops, body: list[str], indent: str) -> Lines:
        """A nest whose rounds of `loops` may go to different workers.

        `fixed` are all loops that name a place in `target`, those that the body opens among them.
        """
        ...


class OpenMp:
    """Deals rounds out to OpenMP threads: loops over the places of the result, collapsed into one."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def dealt(self, loops: Loops, target: Ref, fixed: Loops, body: list[str], indent: str) -> Lines:
        if loops and self.threads > 1:
            yield f'{indent}_Pragma("omp parallel for collapse({len(loops)}) num_threads({self.threads})")'
        yield from (indent + line for line in (*loops_of(loops), "{"))
        yield from (f"{indent}    {line}" for line in body)
        yield f"{indent}}}"


class PublishedNests:
    """Nests as published. What follows a contraction number by number is a parallel step of its own, too."""

    def __init__(self, access: Access, keeps: str, dealing: Dealing) -> None:
        self.access, self.keeps, self.dealing = access, keeps, dealing

    def contract(self, it: Contract, block: Block, indent: str) -> Lines:
        place = self.access.place
        result = place(it.target)
        factors = " * ".join(place(ref) for ref in (it.left, it.right) if ref is not None)
        start = "0" if it.start is None else place(it.start)
        mine = shared_out(self.access.plan, it, self.keeps)
        if self.access.plan.nest(it).aliased:
            rest = tuple(loop for loop in it.loops if loop not in mine)
            body = [*loops_of(rest), f"    {result} += {factors};"]
        elif self.keeps == "outputs" or not it.summed():
            body = [f"R sum = {start};", *loops_of(it.summed()), f"    sum += {factors};"]
            body += [f"{result} {'+=' if it.add else '='} sum;"]
        else:
            rest = it.fixed()[1:]
            body = [] if it.add else [*loops_of(rest), f"    {result} = {start};"]
            body += [*loops_of((*it.summed(), *rest)), f"    {result} += {factors};"]
        yield from self.dealing.dealt(mine, it.target, it.fixed(), body, indent)

    def apply(self, it: Apply, indent: str) -> Lines:
        sign = "+=" if it.add else "="
        body = [f"{self.access.place(it.target)} {sign} {self.access.expression(it.value, {}, {})};"]
        yield from self.dealing.dealt(it.loops, it.target, it.loops, body, indent)


def shared_out(plan: Plan, it: Contract, keeps: str) -> Loops:
    """The loops whose rounds different workers may have; a place that several rounds add to stays with one."""
    if plan.nest(it).aliased:
        return tuple(loop for loop in it.fixed() if any(i.terms == ((loop.name, 1),) for i in it.target.index))
    return it.fixed() if keeps == "outputs" or not it.summed() else it.fixed()[:1]


def loops_of(loops: Loops) -> Iterator[str]:
    """Opens loops one within another, all of them around one statement."""
    yield from map(opening, loops)


def published(plan: Plan, keeps: str, threads: int) -> Printer:
    """Prints the plan as the study published it for one process of several threads."""
    access = Access(plan)
    return Printer(access, PublishedNests(access, keeps, OpenMp(threads)), OneThread(access))


# The text of a published study among ranks of MPI: each computes its part of a layer's places, and after each layer
# all parts are gathered, so that every rank has all of them.
#
#     rank 0   ▓▓▓▓▓░░░░░░░░░░          ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
#     rank 1   ░░░░░▓▓▓▓▓░░░░░  gather  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓   the next layer
#     rank 2   ░░░░░░░░░░▓▓▓▓▓          ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
#
# A part is a stretch of memory: the places are counted in the order in which they lie there, by as many of the outer
# loops as make enough of them. The sum of a place, a gradient's over all pixels too, stays with one rank: so any
# number of ranks gives the bits of the sequential program, and nothing has to be reduced. What has too few places, or
# none that lie side by side, is computed by every rank.
#
# A function of each number, such as a sigmoid, belongs to the layer before: a rank continues with its own part, and
# what only such functions read is never gathered.

ENOUGH = 8  # parts to deal out: the inner loops are left whole
GATHER = Path(__file__).parent / "gather.hpp"  # stands before the text


class Deal(NamedTuple):
    """How the places of a buffer are dealt out: so many parts of so many numbers, the first of them at `start`."""

    many: int
    unit: int
    start: int


class Parts:
    """Which buffers need not be gathered, since a rank reads its own part of them only."""

    def __init__(self, plan: Plan, keeps: str) -> None:
        self.plan, self.keeps = plan, keeps
        #: By a statement's id: the buffer whose parts it continues with, and how these are dealt out.
        self.followed: dict[int, tuple[str, Deal]] = {}
        #: The buffers that are never gathered.
        self.own = self._never_gathered()

    def _never_gathered(self) -> set[str]:
        statements = [step.statement for step in self.plan.steps()]
        mentions: dict[str, list[Statement | Transpose]] = defaultdict(list)
        for statement in statements:
            for name in {self.plan.program.base(name) for name in used_by([statement])}:
                mentions[name].append(statement)
        deals: dict[str, Deal] = {}
        for statement in statements:
            if isinstance(statement, Contract | Apply):
                name = self.plan.program.base(statement.target.buffer)
                deal = self._deal(statement, deals)
                if deal and self.plan.program.buffers[name].kind is Kind.SAMPLE and self._once(name, mentions[name]):
                    deals[name] = deal
        return {
            name
            for name in deals
            if all(self._writes(it, name) or self.followed.get(id(it), ("",))[0] == name for it in mentions[name])
        }

    def _deal(self, it: Contract | Apply, deals: dict[str, Deal]) -> Deal | None:
        """How all places of the result are dealt out, if they lie one after the other."""
        if isinstance(it, Apply) and flattened(self.plan, it) is not None:
            for ref in leaves(it.value):
                name = self.plan.program.base(ref.buffer)
                if name in deals and self.plan.at(ref).shift == deals[name].start:
                    self.followed[id(it)] = name, deals[name]
                    return deals[name]._replace(start=self.plan.at(it.target).shift)
        if isinstance(it, Apply):
            loops = fixed = it.loops
        else:
            loops, fixed = shared_out(self.plan, it, self.keeps), it.fixed()
        place = self.plan.at(it.target)
        outer, unit = parts(place, loops, fixed)
        count = prod(loop.extent for loop in outer)
        is_complete = outer and count * unit == prod(loop.extent for loop in fixed)
        return Deal(count, unit, place.shift) if is_complete else None

    def _once(self, name: str, mentioned: list[Statement | Transpose]) -> bool:
        """Whether it is written by one statement, and read by functions of each number only."""
        others = [it for it in mentioned if not self._writes(it, name)]
        plain = all(isinstance(it, Apply) and flattened(self.plan, it) is not None for it in others)
        return plain and len(mentioned) - len(others) == 1

    def _writes(self, it: Statement | Transpose, name: str) -> bool:
        return isinstance(it, Contract | Apply) and self.plan.program.base(it.target.buffer) == name


class AmongRanks:
    """Deals rounds out to ranks, and each rank's part to its OpenMP threads."""

    def __init__(self, access: Access, local: set[str], threads: int) -> None:
        self.access, self.own, self.threads = access, local, threads
        #: For nests that cannot be cut into parts, which every rank computes whole.
        self.whole = OpenMp(threads)

    def dealt(self, loops: Loops, target: Ref, fixed: Loops, body: list[str], indent: str) -> Lines:
        place = self.access.plan.at(target)
        outer, unit = parts(place, loops, fixed)
        if not outer:
            yield from self.whole.dealt(loops, target, fixed, body, indent)
            return
        count = prod(loop.extent for loop in outer)
        yield from self.parallel(indent)
        yield f"{indent}for (int part = first_part({count}); part < last_part({count}); part++) {{"
        inside = count
        for loop in outer:
            inside //= loop.extent
            yield f"{indent}    const int {loop.name} = part / {inside} % {loop.extent};"
        rest = tuple(loop for loop in loops if loop not in outer)
        yield from (f"{indent}    {line}" for line in (*loops_of(rest), "{"))
        yield from (f"{indent}        {line}" for line in body)
        yield f"{indent}    }}"
        yield f"{indent}}}"
        names = {loop.name for loop in fixed}
        start = Index(tuple(term for term in place.terms if term[0] not in names), place.shift)
        yield from self.gathered(target.buffer, written(start, 0), count, unit, indent)

    def parallel(self, indent: str) -> Lines:
        """Shares the loop that follows among the rank's threads."""
        if self.threads > 1:
            yield f'{indent}_Pragma("omp parallel for num_threads({self.threads})")'

    def gathered(self, buffer: str, start: str, count: int, unit: int, indent: str) -> Lines:
        """Gives every rank all parts of a buffer, if any rank reads more than its own."""
        if self.access.plan.program.base(buffer) not in self.own:
            all_parts = self.access.part(buffer, count * unit, start)
            yield f"{indent}gather(address({all_parts}), {count}, {unit} * sizeof(V));"


class RankNests:
    """Published nests among ranks. A function of each number continues with the parts of the layer before."""

    def __init__(self, access: Access, keeps: str, threads: int) -> None:
        self.access, self.parts = access, Parts(access.plan, keeps)
        self.dealing = AmongRanks(access, self.parts.own, threads)
        self.published = PublishedNests(access, keeps, self.dealing)

    def contract(self, it: Contract, block: Block, indent: str) -> Lines:
        yield from self.published.contract(it, block, indent)

    def apply(self, it: Apply, indent: str) -> Lines:
        if id(it) not in self.parts.followed:
            yield from self.published.apply(it, indent)
            return
        access, flat, (_, deal) = self.access, flattened(self.access.plan, it), self.parts.followed[id(it)]
        assert flat is not None
        yield from self.dealing.parallel(indent)
        begin, end = (f"{which}_part({deal.many}) * {deal.unit}" for which in ("first", "last"))
        yield f"{indent}for (int q = {begin}; q < {end}; q++)"
        value = access.expression(flat.value, {}, {})
        yield f"{indent}    {access.place(flat.target)} {'+=' if it.add else '='} {value};"
        start = str(access.plan.at(it.target).shift)
        yield from self.dealing.gathered(it.target.buffer, start, deal.many, deal.unit, indent)


def among_ranks(plan: Plan, keeps: str, threads: int) -> Printer:
    """Prints the plan as the study published it for ranks of MPI."""
    access = Access(plan)
    return Printer(access, RankNests(access, keeps, threads), OneThread(access))


def parts(place: Index, loops: Loops, fixed: Loops) -> tuple[Loops, int]:
    """(the loops that count the parts, the numbers from one part to the next); no loops where there are no parts."""
    partition: tuple[Loops, int] = (), 0
    by_stride = sorted((loop for loop in loops if loop.extent > 1), key=lambda loop: -place.of(loop.name))
    for many in range(1, len(by_stride) + 1):
        outer, unit = tuple(by_stride[:many]), place.of(by_stride[many - 1].name)
        inner = sum(place.of(loop.name) * (loop.extent - 1) for loop in fixed if loop not in outer)
        side_by_side = all(place.of(a.name) == b.extent * place.of(b.name) for a, b in pairwise(outer))
        if unit > inner and side_by_side:
            partition = outer, unit
            if prod(loop.extent for loop in outer) >= ENOUGH:
                break
    return partition
