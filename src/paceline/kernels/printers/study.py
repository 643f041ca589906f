"""The text of a published study: every layer a parallel step of its own, one sample at a time, no registers shared.

    outputs   each place of the result by one thread, all its terms summed there ("output stationary")
    inputs    each channel of the result by one thread, the loops that are summed over outside: an input and a weight
              stay while all results of the channel that they enter are added to ("input stationary")

With one thread it is the sequential program that speed-ups are measured against. `dealt.py` has the same among ranks,
`cuda.py` the same on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from paceline.kernels.blocks import Block
from paceline.kernels.ir import Apply, Contract, Loops, Ref
from paceline.kernels.plan import Plan
from paceline.kernels.printers.access import Access, Lines, opening
from paceline.kernels.printers.printer import Printer
from paceline.kernels.printers.threads import OneThread


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
