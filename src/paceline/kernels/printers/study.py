"""The text of a published study: every layer a parallel step of its own, one sample at a time, no registers shared.

    outputs   each place of the result by one thread, all its terms summed there ("output stationary")
    inputs    each channel of the result by one thread, the loops that are summed over outside: an input and a weight
              stay while all results of the channel that they enter are added to ("input stationary")

With one thread it is the sequential program that speed-ups are measured against. `dealt.py` has the same among ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.kernels.blocks import Block
from paceline.kernels.ir import Apply, Contract, Loops, Ref
from paceline.kernels.plan import Plan
from paceline.kernels.printers.nests import Nests


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
        mine = self.shared_out(it)
        if self.plan.nest(it).aliased:
            rest = tuple(loop for loop in it.loops if loop not in mine)
            body = [*self._loops_of(rest), f"    {result} += {factors};"]
        elif self.keeps == "outputs" or not it.summed():
            body = [f"R sum = {start};", *self._loops_of(it.summed()), f"    sum += {factors};"]
            body += [f"{result} {'+=' if it.add else '='} sum;"]
        else:
            rest = it.fixed()[1:]
            body = [] if it.add else [*self._loops_of(rest), f"    {result} = {start};"]
            body += [*self._loops_of((*it.summed(), *rest)), f"    {result} += {factors};"]
        yield from self.dealt(mine, it.target, it.fixed(), body, indent)

    def shared_out(self, it: Contract) -> Loops:
        """The loops whose rounds different threads may have; places that several rounds meet in stay with one."""
        if self.plan.nest(it).aliased:
            return tuple(loop for loop in it.fixed() if any(i.terms == ((loop.name, 1),) for i in it.target.index))
        return it.fixed() if self.keeps == "outputs" or not it.summed() else it.fixed()[:1]

    def apply(self, it: Apply, indent: str) -> Iterator[str]:
        sign = "+=" if it.add else "="
        body = [f"{self.place(it.target)} {sign} {self.expression(it.value, {}, {})};"]
        yield from self.dealt(it.loops, it.target, it.loops, body, indent)

    def dealt(self, loops: Loops, target: Ref, fixed: Loops, body: list[str], indent: str) -> Iterator[str]:
        """A nest whose rounds are dealt out to the threads; `fixed` are all loops that name a place in the target."""
        if loops and self.threads > 1:
            yield f'{indent}_Pragma("omp parallel for collapse({len(loops)}) num_threads({self.threads})")'
        yield from (indent + line for line in (*self._loops_of(loops), "{"))
        yield from (f"{indent}    {line}" for line in body)
        yield f"{indent}}}"

    @staticmethod
    def _loops_of(loops: Loops) -> Iterator[str]:
        for loop in loops:
            yield f"for (int {loop.name} = 0; {loop.name} < {loop.extent}; {loop.name}++)"
