"""Steps of a plan as C++ functions."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.kernels.blocks import Block
from paceline.kernels.ir import Apply, Contract, Repeat, Statement, Transpose
from paceline.kernels.memory import used_by
from paceline.kernels.plan import Plan, Step, contractions
from paceline.kernels.printers.access import Access, Lines, brackets, opening
from paceline.kernels.printers.nests import Nests
from paceline.kernels.printers.others import Others
from paceline.kernels.printers.threads import Threads
from paceline.names import comment


class Printer:
    """Prints each step of a plan as a function, in the form that its parts give it.

    nests     how contractions and expressions are printed
    threads   how the threads of a group of samples share rounds, and where they wait
    """

    def __init__(self, access: Access, nests: Nests, threads: Threads) -> None:
        self.access, self.nests, self.threads = access, nests, threads
        self.others = Others(access, threads)

    def functions(self, plan: Plan) -> Lines:
        """All steps, a function each."""
        for step in plan.steps():
            yield from self._function(step)

    def _function(self, step: Step) -> Lines:
        yield f"// {comment(_described(step.statement))}"
        yield f"{self.threads.function} {step.name}(Group& g) {{"
        yield from self.access.declarations(used_by([step.statement]))
        if any(it.first for it in contractions(step.statement)):
            yield "    const bool first_of_chunk = g.first;"
        yield from self._lines(step.statement, iter(step.blocks), "    ")
        yield "}"
        yield ""

    def _lines(self, statement: Statement | Transpose, blocks: Iterator[Block], indent: str) -> Lines:
        match statement:
            case Contract():
                yield from self.nests.contract(statement, next(blocks), indent)
            case Apply():
                yield from self.nests.apply(statement, indent)
            case Repeat():
                yield from self._repeat(statement, blocks, indent)
            case _:
                yield from self.others.lines(statement, indent)

    def _repeat(self, it: Repeat, blocks: Iterator[Block], indent: str) -> Lines:
        name, extent = it.loop.name, it.loop.extent
        backwards = f"for (int {name} = {extent - 1}; {name} >= 0; {name}--)"
        yield f"{indent}{backwards if it.backwards else opening(it.loop)} {{"
        for inner in it.body:
            yield from self.threads.wait(indent + "    ", inner)
            yield from self._lines(inner, blocks, indent + "    ")
        yield from self.threads.wait(indent + "    ")
        yield f"{indent}}}"


def _described(statement: Statement | Transpose) -> str:
    match statement:
        case Contract(target=target, left=left, right=right):
            factors = " * ".join(brackets(ref) for ref in (left, right) if ref is not None)
            return f"{statement.layer}: {brackets(target)} += {factors}"
        case Apply(target=target):
            return f"{statement.layer}: {brackets(target)}"
    return f"{statement.layer}: {type(statement).__name__.lower()}"
