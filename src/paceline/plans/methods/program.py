"""What the program of a worker yields, and who answers it.

A worker of a method is one generator. It knows no transport, no clock and no process: what it needs it yields as an
effect, and is sent the answer.

    def program(self, worker):                               # AllReduce
        for update in worker.updates():
            gradient = yield Gradient(update, version=update)
            total = yield Sum(update, gradient)
            yield OptimizerStep(update, update + 1, total)

Each of these answers the effects, and so runs the same program:

    engines.workers.performer     in a worker process: at once, by waiting on shared memory or sockets
    engines.virtual.lockstep      on a virtual clock: a world says how long each effect takes, with or without numbers
    engines.replay.from_plan      in a replay: in one process, without a clock

Where several workers do the same in step with one another, one program may stand for all of them: gradients and sums
are opaque to it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, get_args

from paceline.algorithms.coordinators import Algebra, Dot


class Gradient(NamedTuple):
    """Compute a gradient. The answer is the gradient.

    Raises `EndOfTraining` in the program where no more gradients will come.
    """

    update: int
    #: The version of the parameters that it is computed from.
    version: int
    #: Of the whole batch, rather than of this worker's part of it.
    whole: bool = False
    #: The update has evaluated its batch before, at other parameters.
    again: bool = False


class Sum(NamedTuple):
    """Add up the gradients of all workers by the method's collective. The answer is the sum."""

    update: int
    gradient: Any


class OptimizerStep(NamedTuple):
    """Step this worker's parameters by a gradient, which makes the next version of them."""

    update: int
    version: int
    gradient: Any


class Offer(NamedTuple):
    """Let the others have what this replica contributes to an exchange before anyone waits for it, where that pays."""

    exchange: int


class Exchange(NamedTuple):
    """Average this replica with those of other workers, after an update."""

    exchange: int
    update: int


class BeginExchange(NamedTuple):
    """Begin to average this replica with those of other workers, and go on."""

    exchange: int
    update: int


class EndExchange(NamedTuple):
    """Wait for the exchange that was begun last, and continue from its mean."""

    exchange: int
    update: int


class Recall(NamedTuple):
    """Return what a coordinator remembered at the point that the run was resumed from; nothing in a new run."""


class Keep(NamedTuple):
    """Keep this worker's slice of a gradient. The answer is the loss of the batch."""

    gradient: Any


class Product(NamedTuple):
    """Multiply two vectors, of which every worker has a slice. The answer is the product, the same on all workers."""

    update: int
    command: Dot


class Change(NamedTuple):
    """Change this worker's slice of a vector."""

    command: Algebra


class Gather(NamedTuple):
    """Give every replica the whole of the parameters, of which every worker has changed a slice."""

    update: int


class Finish(NamedTuple):
    """End an update of a coordinator, which remembers this from here on."""

    update: int
    remembers: Sequence[Sequence[str | float]]


Effect = (
    Gradient
    | Sum
    | OptimizerStep
    | Offer
    | Exchange
    | BeginExchange
    | EndExchange
    | Recall
    | Keep
    | Product
    | Change
    | Gather
    | Finish
)
ALL_EFFECTS: tuple[type, ...] = get_args(Effect)
Program = Generator[Effect, Any, None]


class EndOfTraining(Exception):
    """No more gradients will come, because a user-defined loop has ended."""


def all_of(updates: range) -> range:
    return updates


class Worker(Protocol):
    """The worker that a program is of. One that stands for several has the rank of the first."""

    rank: int
    workers: int
    #: The first update that is yet to be made, and the number of all updates.
    first: int
    last: int

    def updates(self, *, dealt: bool = False, until: Callable[[range], range] = all_of) -> Iterator[int]:
        """Yield the updates to be made one after another; if they are `dealt` out to the workers, every n-th.

        Generated code may make several in one call. The program then sees the last of them alone. `until` says of the
        updates ahead which of them may be made without the program.
        """


def effects(program: Program, answers: Mapping[type, Callable[..., Any]]) -> Iterator[Effect]:
    """Run a program to its end by these answers; yields each effect before it is answered."""
    answer = None
    while True:
        try:
            effect = program.send(answer)
        except (StopIteration, EndOfTraining):
            return
        yield effect
        answer = answers[type(effect)](*effect)


def run(program: Program, answers: Mapping[type, Callable[..., Any]]) -> None:
    """Run a program to its end by these answers."""
    for _ in effects(program, answers):
        pass
