"""Which numbers of a sample may lie in the same memory: those that are never needed at once.

A network remembers much on the way forward, but a gradient is needed only until it has been passed on. In memory that
is used again, what is written next is in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.kernels.adjoint import covers
from paceline.kernels.ir import (
    Apply,
    BatchSum,
    CausalMask,
    Contract,
    DropoutMask,
    Lookup,
    Loops,
    Loss,
    MaxPool,
    Program,
    Ref,
    Softmax,
    SoftmaxGradient,
    Statement,
    Tokens,
    Transpose,
)


@dataclass(frozen=True)
class Life:
    """The statements from the first that writes a buffer to the last that reads it."""

    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """Whether both buffers hold something at the same time."""
        return self.first <= other.last and other.first <= self.last


def lives(
    program: Program, touched: Sequence[set[str]], statements: Sequence[Statement | Transpose]
) -> dict[str, Life]:
    """The life of each buffer whose memory may be used by others; `touched` are the buffers of each statement.

    Others keep their memory: places without a writer, as the margin of an image, are zero for that reason; and
    what is summed over a batch, other groups of samples read.
    """
    lifetimes: dict[str, Life] = {}
    pinned: set[str] = set()
    for number, (names, statement) in enumerate(zip(touched, statements, strict=True)):
        for name in {program.base(name) for name in names}:
            if name not in lifetimes and name != "input" and not _writes_all(program, statement, name):
                pinned.add(name)
            lifetimes[name] = Life(lifetimes[name].first if name in lifetimes else number, number)
        if isinstance(statement, BatchSum):
            pinned.add(program.base(statement.source))
        if isinstance(statement, Lookup) and statement.numbers:  # a row that does not exist would be read out of bounds
            pinned.add(program.base(statement.numbers))
    if "input" in lifetimes:
        lifetimes["input"] = Life(-1, lifetimes["input"].last)
    return {name: life for name, life in lifetimes.items() if name not in pinned}


def _writes_all(program: Program, statement: Statement | Transpose, name: str) -> bool:
    """Whether a statement writes every number of a buffer, and reads none of them."""

    def is_whole(target: Ref, loops: Loops) -> bool:
        return program.base(target.buffer) == name and covers(target, loops, program.shape(target.buffer))

    match statement:
        case Apply(target=target, loops=loops, add=False):
            return is_whole(target, loops)
        case Contract(target=target, add=False, then=then, keeps=keeps):
            return (keeps and is_whole(target, statement.fixed())) or any(
                not a.add and is_whole(a.target, a.loops) for a in then
            )
        case MaxPool(target=target, loops=loops) | Lookup(target=target, loops=loops):
            return is_whole(target, loops)
        case Softmax(target=target, loops=loops, along=along):
            return is_whole(target, (*loops, along))
        case SoftmaxGradient(forward=forward, into=into, add=False):
            return is_whole(into, (*forward.loops, forward.along))
        case (
            DropoutMask(target=target)
            | CausalMask(target=target)
            | Tokens(target=target)
            | BatchSum(target=target)
            | Transpose(target=target)
        ):
            return program.base(target) == name
        case Loss(scores=scores):
            return program.base(f"d_{scores}") == name
    return False


def places(sizes: Mapping[str, int], life: Mapping[str, Life]) -> tuple[dict[str, int], int]:
    """(where each buffer begins, how much memory all take): the largest first, each at the first place that is free."""
    begin: dict[str, int] = {}
    end = 0
    for name in sorted(sizes, key=lambda name: (-sizes[name], life[name].first, name)):
        at = 0
        for other in sorted((o for o in begin if life[o].meets(life[name])), key=begin.__getitem__):
            if begin[other] - at >= sizes[name]:
                break
            at = max(at, begin[other] + sizes[other])
        begin[name] = at
        end = max(end, at + sizes[name])
    return begin, end
