"""The text of a published study: every layer a parallel step of its own, one sample at a time, no registers shared.

    outputs   each place of the result by one thread, all its terms summed there ("output stationary")
    inputs    each channel of the result by one thread, the loops that are summed over outside: an input and a weight
              stay while all results of the channel that they enter are added to ("input stationary")

With one thread it is the sequential program that speed-ups are measured against.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.kernels.blocks import Block
from paceline.kernels.ir import Apply, Contract, Loops
from paceline.kernels.plan import Plan
from paceline.kernels.printers.nests import Nests

KEEPS = ("outputs", "inputs")


class Layerwise(Nests):
    """The same nests as published: OpenMP loops collapsed over the places of the result."""

    def __init__(self, plan: Plan, keeps: str, threads: int) -> None:
        super().__init__(plan)
        self.keeps, self.threads = keeps, threads

    def contract(self, it: Contract, block: Block, indent: str) -> Iterator[str]:
        """What follows number by number is a parallel step of its own, too."""
        result = self.place(it.target)
        factors = " * ".join(self.place(ref) for ref in (it.left, it.right) if ref is not None)
        start = "0" if it.start is None else self.place(it.start)
        together = [loop for loop in it.fixed() if any(i.terms == ((loop.name, 1),) for i in it.target.index)]
        if self.plan.nest(it).aliased:  # places that several rounds meet in stay with one thread
            yield from self._parallel(tuple(together), indent)
            yield from self._loops_of(tuple(loop for loop in it.loops if loop not in together), indent + "    ")
            yield f"{indent}        {result} += {factors};"
            yield f"{indent}}}"
            return
        if self.keeps == "outputs" or not it.summed():
            yield from self._parallel(it.fixed(), indent)
            yield f"{indent}    R sum = {start};"
            yield from self._loops_of(it.summed(), indent + "    ")
            yield f"{indent}        sum += {factors};"
            yield f"{indent}    {result} {'+=' if it.add else '='} sum;"
            yield f"{indent}}}"
            return
        first, rest = it.fixed()[:1], it.fixed()[1:]
        yield from self._parallel(first, indent)
        if not it.add:
            yield from self._loops_of(rest, indent + "    ")
            yield f"{indent}        {result} = {start};"
        yield from self._loops_of((*it.summed(), *rest), indent + "    ")
        yield f"{indent}        {result} += {factors};"
        yield f"{indent}}}"

    def apply(self, it: Apply, indent: str) -> Iterator[str]:
        yield from self._parallel(it.loops, indent)
        sign = "+=" if it.add else "="
        yield f"{indent}    {self.place(it.target)} {sign} {self.expression(it.value, {}, {})};"
        yield f"{indent}}}"

    def _parallel(self, loops: Loops, indent: str) -> Iterator[str]:
        """A nest whose rounds are dealt out to the threads, left open."""
        wide = max(len(loops), 1)
        if loops and self.threads > 1:
            yield f'{indent}_Pragma("omp parallel for collapse({wide}) num_threads({self.threads})")'
        yield from self._loops_of(loops, indent)
        yield f"{indent}{{"

    @staticmethod
    def _loops_of(loops: Loops, indent: str) -> Iterator[str]:
        for loop in loops:
            yield f"{indent}for (int {loop.name} = 0; {loop.name} < {loop.extent}; {loop.name}++)"
