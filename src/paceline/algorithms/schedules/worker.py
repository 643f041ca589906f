"""The worker's side of a pipeline, as a program: it yields effects, and is sent their answers.

    Receive --message--> Compute --message--> Send      each forward and backward of the worker's line, in its order
    SumUp --> Agree --> Update                          when all gradients of an update are there

What goes from one of a worker's stages to another stays inside. `SumUp` meets the workers of the same place in other
replicas, and `Agree` those of the other places in the same replica. Replicas that do not keep step have a server
between them: then a `Push` takes the place of summing up and updating (`algorithms.server.worker`).

Messages are opaque to the program: where it stands for several workers that share the layers of a stage, each is a
list.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

from paceline.algorithms.schedules import ALL_REDUCE, FORWARD, UPDATE, WEIGHTS, Work
from paceline.algorithms.server.messages import Push

Channel = tuple[int, int]  # from which stage to which


class Receive(NamedTuple):
    """Take the next message of a channel. The answer is the message."""

    channel: Channel
    #: The micro-batch that the next message should be of.
    micro: int


class Send(NamedTuple):
    """Put a message into a channel, when it has a free slot."""

    channel: Channel
    micro: int
    message: Any


class Compute(NamedTuple):
    """Compute a piece of work from the message that it needs. The answer is the message that follows from it."""

    work: Work
    message: Any


class SumUp(NamedTuple):
    """Add the gradient of a stage up with those of the other replicas."""

    stage: int
    #: The last micro-batch that is in it.
    micro: int


class Agree(NamedTuple):
    """Agree with the other workers of this replica on the norm of the whole gradient."""

    stage: int
    micro: int


class Update(NamedTuple):
    """Make the next version of a stage."""

    work: Work


Effect = Receive | Send | Compute | SumUp | Agree | Update
Program = Generator[Any, Any, None]  # of effects; with a server, also of a push


def micro_of(effect: Effect) -> int:
    """Return the micro-batch that an effect is about, or the last of them."""
    return effect.work.micro if isinstance(effect, Compute | Update) else effect.micro


def follow(line: Iterable[Work], stage_to_worker: Sequence[int], push: Push | None = None) -> Program:
    """Do the work of a line, one piece after another; where there is a server, `push` instead of every update."""
    stages, summed = len(stage_to_worker), set[int]()
    #: Messages between two stages of this worker.
    inside: dict[tuple[Channel, int], Any] = {}
    for work in line:
        stage, micro, what, _ = work
        owner = stage_to_worker[stage]
        if what == WEIGHTS:
            yield Compute(work, None)
        elif what == UPDATE:
            if push is None and stage not in summed:
                yield SumUp(stage, micro)
            summed.discard(stage)
            yield Update(work) if push is None else push
        elif what == ALL_REDUCE:
            mine = [number for number, worker in enumerate(stage_to_worker) if worker == owner]
            for number in mine:
                yield SumUp(number, micro)
            summed.update(mine)
            yield Agree(stage, micro)
        else:
            onward = 1 if what == FORWARD else -1
            before, after = stage - onward, stage + onward
            message = None
            if 0 <= before < stages and stage_to_worker[before] != owner:
                message = yield Receive((before, stage), micro)
            elif 0 <= before < stages:
                message = inside.pop(((before, stage), micro), None)
            message = yield Compute(work, message)
            if 0 <= after < stages and stage_to_worker[after] != owner:
                yield Send((stage, after), micro, message)
            elif 0 <= after < stages:
                inside[(stage, after), micro] = message
            del message  # what was sent needs no memory while the next piece is computed
