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

from paceline.errors import PlanError

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


CURVATURES = (1.0, 2.0, 3.0, 4.0, 5.0)
Vectors = dict[str, list[float]]


class Rehearsal(NamedTuple):
    """Rehearsal of a coordinator in plain Python: its commands, for drawing, and a check that they are valid.

    The stand-in for a job is the quadratic f(x) = (x1^2 + 2 x2^2 + ... + 5 x5^2) / 2, from x = (1, ..., 1).
    """

    updates: list[list[Command]]  # the commands of each
    loss: float  # after them


def rehearse(coordinator: Coordinator, updates: int) -> Rehearsal:
    """Run some updates. Raise PlanError where a vector is read before it is written, or is not named."""
    commands, vectors, sequences = coordinator.commands(), _Written(coordinator), list[list[Command]]()
    for _ in range(updates):
        command, mine = next(commands), list[Command]()
        while not isinstance(command, Done):
            mine.append(command)
            command = commands.send(_execute(command, vectors))
        sequences.append(mine)
    return Rehearsal(sequences, _loss(vectors))


class _Written(Vectors):
    """Vectors that refuse to be read before they are written."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__({PARAMETERS: [1.0] * len(CURVATURES)})
        self.name, self.allowed = type(coordinator).__name__, coordinator.vectors

    def __missing__(self, vector: str) -> list[float]:
        raise PlanError(f"{self.name} reads the vector {vector!r}, which was never written")

    def __setitem__(self, vector: str, value: list[float]) -> None:
        if vector not in self.allowed:
            raise PlanError(f"{self.name} writes the vector {vector!r}, which is not among its vectors")
        super().__setitem__(vector, value)


def _execute(command: Command, vectors: Vectors) -> float:
    if isinstance(command, Evaluate):
        vectors[GRADIENT] = [a * x for a, x in zip(CURVATURES, vectors[PARAMETERS], strict=True)]
        return _loss(vectors)
    if isinstance(command, Dot):
        return sum(a * b for a, b in zip(vectors[command.one], vectors[command.other], strict=True))
    if isinstance(command, Copy):
        vectors[command.target] = list(vectors[command.source])
    elif isinstance(command, Scale):
        vectors[command.target] = [command.factor * a for a in vectors[command.target]]
    elif isinstance(command, Axpy):
        pairs = zip(vectors[command.target], vectors[command.other], strict=True)
        vectors[command.target] = [a + command.factor * b for a, b in pairs]
    return 0.0


def _loss(vectors: Vectors) -> float:
    return sum(a * x * x for a, x in zip(CURVATURES, vectors[PARAMETERS], strict=True)) / 2
