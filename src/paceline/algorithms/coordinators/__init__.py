"""Coordinators: optimizers written as generators of commands.

    command                        what is done                                             answer
    Evaluate()                     workers: loss and gradient at the current parameters     the loss
    Dot(one, other)                shards: the product of two vectors                       a number
    Copy(target, source)           shards: target <- source                                 -
    Scale(target, factor)          shards: target <- factor * target                        -
    Axpy(target, factor, other)    shards: target <- target + factor * other                -
    Done(remembers)                the update is complete                                   -

The small set of operations by which the coordinator of Sandblaster works (Dean et al., "Large scale distributed deep
networks", NeurIPS 2012). Vectors have names and live with the shards, each of which holds a slice of every vector. The
coordinator never sees one: it decides by numbers alone. So every worker can run it at once, each with the same commands
because each gets the same answers, and there is no coordinator process that could be lost.

One file per published method.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol

PARAMETERS, GRADIENT = "parameters", "gradient"  # what `Evaluate` reads, and where it leaves the gradient


class Evaluate(NamedTuple):
    pass


class Dot(NamedTuple):
    one: str
    other: str


class Copy(NamedTuple):
    target: str
    source: str


class Scale(NamedTuple):
    target: str
    factor: float


class Axpy(NamedTuple):
    target: str
    factor: float
    other: str


class Done(NamedTuple):
    remembers: Sequence[Sequence[str | float]] = ()  # what the coordinator needs to resume from here


Algebra = Copy | Scale | Axpy  # what every shard does to its own slices, without communication
Command = Evaluate | Dot | Algebra | Done
Commands = Generator[Command, float, None]


class Coordinator(Protocol):
    @property
    def vectors(self) -> tuple[str, ...]:
        """The names of all vectors, PARAMETERS and GRADIENT among them. All but PARAMETERS start at zero."""

    def commands(self, remembered: Sequence[Sequence[str | float]] = ()) -> Commands:
        """Yield the commands of one update after the other, without end, each closed by `Done`.

        `remembered` is that of the last `Done`, to resume from there.
        """
