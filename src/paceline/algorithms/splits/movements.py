"""The movements of an update, as effects of a program that is explored.

A worker that shares layers with others yields the gradient, or a piece of work, as one effect: how its group computes
it is the derived program's business. For the explorers that effect is spread out:

    Gradient(update)     Move(first), Move(second), ..., Gradient(update)
    Compute(F0)          Move(first), ..., Compute(F0)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

from paceline.algorithms.splits import PARTIAL, WHOLE
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


def movements_of_chunk(program: Program, stage: int = 0, first: bool = True) -> Iterator[ProgramStep]:
    """Yield the movements of one chunk; under ZeRO some are of the first chunk of an update alone, some of its end."""
    for step in program.steps:
        if not step.value or not step.movement.travels:
            continue
        gathered_before = stage in (1, 2) and not step.back and not first
        scattered_later = stage == 1 and step.back
        if not gathered_before and not scattered_later:
            yield step


def movements_of_update(program: Program, stage: int = 0, chunks: int = 1) -> Iterator[ProgramStep]:
    """Yield the movements of an update of so many chunks; `stage` is that of ZeRO."""
    for number in range(chunks):
        yield from movements_of_chunk(program, stage, number == 0)
    if stage == 1:
        yield from scattered_at_end(program)
    if stage:
        yield ADD_TOTALS


def scattered_at_end(program: Program) -> list[ProgramStep]:
    """Return the movements of gradients that are whole until the end of an update."""
    moves = [step for step in program.forward if step.value in program.needs and step.value.startswith(PARAMETER)]
    return [move._replace(back=True) for move in moves]
