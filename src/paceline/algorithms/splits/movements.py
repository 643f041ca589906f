"""The movements of an update, as effects of a program that is explored.

A worker that shares layers with others yields the gradient, or a piece of work, as one effect: how its group computes
it is the derived program's business. For the explorers that effect is spread out:

    Gradient(update)     Move(first), Move(second), ..., Gradient(update)
    Compute(F0)          Move(first), ..., Compute(F0)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator
from typing import Any, NamedTuple

from paceline.algorithms.splits import PARTIAL, WHOLE, Placement
from paceline.algorithms.splits.derivation import PARAMETER, Program, ProgramStep

TOTALS = "totals"  # the value in which loss, weight and moving buffers of all workers are added up
ADD_TOTALS = ProgramStep((), TOTALS, PARTIAL, WHOLE)


class Move(NamedTuple):
    """Take part in a movement of the group, each worker of which sends to all others and takes from all."""

    step: ProgramStep


def moving(
    program: Generator[Any, Any, None], movements: Callable[[Any], Iterable[ProgramStep]]
) -> Generator[Any, Any, None]:
    """Run a program with the movements of each of its effects before the effect."""
    answer = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration:
            return
        for step in movements(effect):
            yield Move(step)
        answer = yield effect


# When workers that store shares of parameters move what (ZeRO's three stages); 0 is no stage.
#
# stage    gathered parameters                            gradients
# 1        once in an update                              summed whole, scattered at its end
# 2        once in an update                              scattered in every backward
# 3        for each layer, forward and back, then gone    scattered in every backward

Key = tuple[str, Placement]


def keeps_gathered(stage: int) -> bool:
    """Whether a parameter that was gathered is kept until the end of the update."""
    return stage in (1, 2)


def is_due(step: ProgramStep, stage: int, gathered: Container[Key]) -> bool:
    """Whether a worker makes a movement of a chunk when it comes to it, where it has kept these parameters."""
    if step.back:
        return stage != 1
    return (step.value, step.target) not in gathered


def movements_at_end(program: Program, stage: int) -> Iterator[ProgramStep]:
    """Yield the movements at the end of an update: of gradients that are whole until then, and of totals."""
    if stage == 1:
        for step in program.forward:
            if step.value in program.needs and step.value.startswith(PARAMETER):
                yield step._replace(back=True)
    if stage:
        yield ADD_TOTALS


def movements_of_chunk(program: Program, stage: int = 0, gathered: set[Key] | None = None) -> Iterator[ProgramStep]:
    """Yield the movements of one chunk; `gathered` are the parameters that are kept from earlier ones."""
    gathered = set() if gathered is None else gathered
    for step in program.steps:
        if step.value and step.movement.travels and is_due(step, stage, gathered):
            yield step
            if keeps_gathered(stage) and not step.back:
                gathered.add((step.value, step.target))


def movements_of_update(program: Program, stage: int = 0, chunks: int = 1) -> Iterator[ProgramStep]:
    """Yield the movements of an update of so many chunks."""
    gathered: set[Key] = set()
    for _ in range(chunks):
        yield from movements_of_chunk(program, stage, gathered)
    yield from movements_at_end(program, stage)
