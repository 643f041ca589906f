"""How rounds that belong to one group of samples are shared among threads, and where these wait for each other."""

from __future__ import annotations

from math import prod
from typing import Protocol

from paceline.kernels.ir import Loops, Ref, Scatter, Statement, Transpose
from paceline.kernels.printers.access import Access, Lines, opening


class Threads(Protocol):
    """The threads that work on one group of samples together."""

    #: What stands before the name of a generated function.
    function: str

    def opened(self, loops: Loops, inside: Loops, written_to: Ref) -> tuple[list[str], int]:
        """(lines that open all rounds of `loops`, how many braces they open).

        The caller opens the loops `inside` within them; `written_to` is what all these rounds write.
        """
        ...

    def each(self, size: int) -> str:
        """Opens the rounds of a plain count, q."""
        ...

    def scatter(self, it: Scatter, indent: str) -> Lines:
        """Adds gradients to the rows of a table that a sample's tokens name."""
        ...

    def wait(self, indent: str, before: Statement | Transpose | None = None) -> Lines:
        """Lets the threads wait for each other before a statement, or, with None, before any."""
        ...


class OneThread:
    """A CPU: one thread works on a group of samples, so that there is nothing to share and to wait for."""

    function = "static __attribute__((noinline)) void"

    def __init__(self, access: Access) -> None:
        self.access = access

    def opened(self, loops: Loops, inside: Loops, written_to: Ref) -> tuple[list[str], int]:
        return ["    " * depth + opening(loop) + " {" for depth, loop in enumerate(loops)], len(loops)

    def each(self, size: int) -> str:
        return f"for (int q = 0; q < {size}; q++)"

    def scatter(self, it: Scatter, indent: str) -> Lines:
        name, table = self.access.name, self.access.plan.places[it.table]
        in_lanes = self.access.plan.target.replicas or table.region == "lanes"
        rows, width = prod(loop.extent for loop in it.loops[:-1]), it.loops[-1].extent
        yield f"{indent}for (int q = 0; q < {rows}; q++) for (int l = 0; l < LANES; l++) {{"
        yield f"{indent}    const int64_t row = {self.access.token(it.numbers, 'l')};"
        if it.padding is not None:
            yield f"{indent}    if (row == {it.padding}) continue;"
        yield f"{indent}    for (int d = 0; d < {width}; d++) {{"
        place = f"{name(it.table)}[row * {width} + d]"
        value = f"lane({name(it.gradient.buffer)}[q * {width} + d], l)"
        if in_lanes:
            yield f"{indent}        set_lane({place}, l, lane({place}, l) + {value});"
        else:
            yield f"{indent}        {place} += {value};"
        yield f"{indent}    }}"
        yield f"{indent}}}"

    def wait(self, indent: str, before: Statement | Transpose | None = None) -> Lines:
        yield from ()
