"""A program of split layers as figures: what its workers compute, hold and send in an update. Pure.

The same figures serve a plan that has a name and a table that a search tries (`split_search`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from paceline.algorithms.splits import PARTIAL, WHOLE, Shape
from paceline.algorithms.splits.derivation import PARAMETER, Program
from paceline.algorithms.splits.placements import AllToAll, Movement, volume
from paceline.planning.planner.facts import ModelDivision
from paceline.plans.methods.prediction import sent
from paceline.plans.methods.views import Parts
from paceline.training.parameters.layout import ALIGN

TOTALS_BYTES = 8  # of each number in which workers of ZeRO add up losses and weights


def division_of(program: Program, parts: Parts, moving: Mapping[str, Shape], number: int) -> ModelDivision:
    """Return what a worker computes, holds and sends; on average over the workers of a group.

    moving   the shapes of the buffers that training changes, by their names
    number   bytes of a number
    """
    size = program.workers
    exchanges = exchanges_of(program, parts.stage)
    moved = _numbers(exchanges, size) * number / size
    if parts.stage:
        totals = 2 + sum(map(prod, moving.values()))
        added = Movement(PARTIAL, WHOLE).exchanges((totals,), size)
        moved += _numbers(added, size) * TOTALS_BYTES / size
        exchanges += added
    if parts.replicas > 1:
        moved += sent(parts.collective, parts.replicas, number * _payload(program, list(moving), number))
    segments = sum(bool(step.nodes) for step in program.steps)
    computed = {} if parts.stage else _computed(program)
    return ModelDivision(moved, 0, len(exchanges) * (size - 1), segments, _held(program), computed)


def exchanges_of(program: Program, stage: int) -> list[AllToAll]:
    """Return the exchanges of an update; stages 1 and 2 of ZeRO gather each parameter once."""
    moves = [step for step in program.steps if step.value and not (step.again and stage in (1, 2))]
    return [e for step in moves for e in step.movement.exchanges(program.shapes[step.value], program.workers)]


def _numbers(exchanges: Sequence[AllToAll], size: int) -> int:
    return sum(each.sent(place) for each in exchanges for place in range(size))


def _computed(program: Program) -> dict[str, float]:
    """Return the share of each layer that a worker computes: a part of one that is split, or follows a split."""
    count, shares = Counter[str](), Counter[str]()
    for name, node in program.nodes.items():
        if node.layer:
            count[node.layer] += 1
            split = program.ways[name] not in ("", "whole") or program.layouts[name].gives.is_split
            shares[node.layer] += 1.0 / program.workers if split else 1.0  # type: ignore[assignment]
    return {layer: shares[layer] / count[layer] for layer in count}


def _held(program: Program) -> float:
    """Return the share of the trained parameters that a worker holds, on average."""
    names = [name for name in program.stored if PARAMETER + name in program.needs]
    total = program.workers * sum(prod(program.shapes[PARAMETER + name]) for name in names)
    return sum(_volume(program, name, place) for name in names for place in range(program.workers)) / max(1, total)


def _payload(program: Program, moving: Sequence[str], number: int) -> float:
    """Return the numbers of the vector that replicas add up, on average over the workers of a group."""
    line = ALIGN // number
    trained = [name for name in program.stored if PARAMETER + name in program.needs]
    numbers = sum(
        -(-_volume(program, name, place) // line) * line
        for name in (*trained, *moving)
        for place in range(program.workers)
    )
    return numbers / program.workers + len(trained) + 2


def _volume(program: Program, name: str, place: int) -> int:
    """Return how many numbers of a parameter or buffer the worker at this place holds."""
    return volume(program.stored.get(name, WHOLE).box(program.shapes[PARAMETER + name], place))
