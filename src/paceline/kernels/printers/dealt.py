"""The text of a published study among ranks of MPI: each computes its part of a layer's places, and after each layer
all parts are gathered, so that every rank has all of them.

    rank 0   ▓▓▓▓▓░░░░░░░░░░          ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
    rank 1   ░░░░░▓▓▓▓▓░░░░░  gather  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓   the next layer
    rank 2   ░░░░░░░░░░▓▓▓▓▓          ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓

A part is a stretch of memory: the places are counted in the order in which they lie there, by as many of the outer
loops as make enough of them. The sum of a place, a gradient's over all pixels too, stays with one rank: so any number
of ranks gives the bits of the sequential program, and nothing has to be reduced. What has too few places, or none that
lie side by side, is computed by every rank.

A function of each number, such as a sigmoid, belongs to the layer before: a rank goes on with its own part, and what
only such functions read is never gathered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import NamedTuple

from paceline.kernels.ir import Apply, Contract, Index, Kind, Loops, Ref, Statement, leaves
from paceline.kernels.memory import Turn, used_by
from paceline.kernels.plan import Plan
from paceline.kernels.printers.study import Layerwise
from paceline.kernels.printers.words import written

ENOUGH = 8  # parts to deal out: the inner loops are left whole
GATHER = Path(__file__).parent / "gather.hpp"  # stands before the text


class Deal(NamedTuple):
    """How the places of a buffer are dealt out: so many parts of so many numbers, the first of them at `start`."""

    many: int
    unit: int
    start: int


class Dealt(Layerwise):
    """Among ranks, and each rank's part among its threads."""

    def __init__(self, plan: Plan, keeps: str, threads: int) -> None:
        super().__init__(plan, keeps, threads)
        self.followed: dict[int, tuple[str, Deal]] = {}  # by the statement: the buffer whose parts it goes on with
        self.own = self._never_gathered()

    def _never_gathered(self) -> set[str]:
        """The buffers of which a rank needs its own part only."""
        statements = [step.statement for step in self.plan.steps()]
        mentions: dict[str, list[Statement | Turn]] = defaultdict(list)
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
        """Of all places of its result, one after the other; where they do not lie so, none."""
        if isinstance(it, Apply) and self.flat(it) is not None:
            for ref in leaves(it.value):
                name = self.plan.program.base(ref.buffer)
                if name in deals and self.plan.at(ref).shift == deals[name].start:
                    self.followed[id(it)] = name, deals[name]
                    return deals[name]._replace(start=self.plan.at(it.target).shift)
        loops, fixed = (it.loops, it.loops) if isinstance(it, Apply) else (self.shared_out(it), it.fixed())
        place = self.plan.at(it.target)
        outer, unit = parts(place, loops, fixed)
        count = prod(loop.extent for loop in outer)
        whole = outer and count * unit == prod(loop.extent for loop in fixed)
        return Deal(count, unit, place.shift) if whole else None

    def _once(self, name: str, mentioned: list[Statement | Turn]) -> bool:
        """Whether it is written by one statement, and read by functions of each number only."""
        others = [it for it in mentioned if not self._writes(it, name)]
        plain = all(isinstance(it, Apply) and self.flat(it) is not None for it in others)
        return plain and len(mentioned) - len(others) == 1

    def _writes(self, it: Statement | Turn, name: str) -> bool:
        return isinstance(it, Contract | Apply) and self.plan.program.base(it.target.buffer) == name

    # --- lines ---

    def apply(self, it: Apply, indent: str) -> Iterator[str]:
        if id(it) not in self.followed:
            yield from super().apply(it, indent)
            return
        flat, (_, deal) = self.flat(it), self.followed[id(it)]
        assert flat is not None
        yield from self._threads(indent)
        begin, end = (f"{which}_part({deal.many}) * {deal.unit}" for which in ("first", "last"))
        yield f"{indent}for (int q = {begin}; q < {end}; q++)"
        value = self.expression(flat.value, {}, {})
        yield f"{indent}    {self.place(flat.target)} {'+=' if it.add else '='} {value};"
        yield from self._gathered(it.target.buffer, str(self.plan.at(it.target).shift), deal.many, deal.unit, indent)

    def dealt(self, loops: Loops, target: Ref, fixed: Loops, body: list[str], indent: str) -> Iterator[str]:
        place = self.plan.at(target)
        outer, unit = parts(place, loops, fixed)
        if not outer:
            yield from super().dealt(loops, target, fixed, body, indent)
            return
        count = prod(loop.extent for loop in outer)
        yield from self._threads(indent)
        yield f"{indent}for (int part = first_part({count}); part < last_part({count}); part++) {{"
        inside = count
        for loop in outer:
            inside //= loop.extent
            yield f"{indent}    const int {loop.name} = part / {inside} % {loop.extent};"
        rest = tuple(loop for loop in loops if loop not in outer)
        yield from (f"{indent}    {line}" for line in (*self._loops_of(rest), "{"))
        yield from (f"{indent}        {line}" for line in body)
        yield f"{indent}    }}"
        yield f"{indent}}}"
        names = {loop.name for loop in fixed}
        start = Index(tuple(term for term in place.terms if term[0] not in names), place.shift)
        yield from self._gathered(target.buffer, written(start, 0), count, unit, indent)

    def _threads(self, indent: str) -> Iterator[str]:
        if self.threads > 1:
            yield f'{indent}_Pragma("omp parallel for num_threads({self.threads})")'

    def _gathered(self, buffer: str, start: str, count: int, unit: int, indent: str) -> Iterator[str]:
        if self.plan.program.base(buffer) not in self.own:
            yield f"{indent}gather({self.name(buffer)} + {start}, {count}, {unit} * sizeof(V));"


def parts(place: Index, loops: Loops, fixed: Loops) -> tuple[Loops, int]:
    """(the loops that count the parts, the numbers from one part to the next); no loops where there are no parts."""
    found: tuple[Loops, int] = (), 0
    by_stride = sorted((loop for loop in loops if loop.extent > 1), key=lambda loop: -place.of(loop.name))
    for many in range(1, len(by_stride) + 1):
        outer, unit = tuple(by_stride[:many]), place.of(by_stride[many - 1].name)
        inner = sum(place.of(loop.name) * (loop.extent - 1) for loop in fixed if loop not in outer)
        side_by_side = all(place.of(a.name) == b.extent * place.of(b.name) for a, b in pairwise(outer))
        if unit > inner and side_by_side:
            found = outer, unit
            if prod(loop.extent for loop in outer) >= ENOUGH:
                break
    return found
