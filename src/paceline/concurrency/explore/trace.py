"""The steps of a run as bytes: from the process that made them to the search that learns from them."""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence

from paceline.concurrency.explore.operation import Mode, Operation, Option, Place, Touch
from paceline.concurrency.explore.strategies import Executed

NOWHERE = Place("", 0, "")


def encode(steps: Sequence[Executed], pending: Mapping[int, Operation]) -> bytes:
    """Return steps as bytes. Locations become numbers: only their equality counts."""
    locations: dict[object, int] = {}
    operations: dict[int, int] = {}  # by identity
    table: list[tuple[str, list[tuple[int, Mode]]]] = []

    def number(operation: Operation) -> int:
        if id(operation) not in operations:
            touches = [(locations.setdefault(each.location, len(locations)), each.mode) for each in operation.touches]
            operations[id(operation)] = len(table)
            table.append((operation.verb, touches))
        return operations[id(operation)]

    rows = [
        (
            tuple(step.option),
            number(step.operation),
            [tuple(each) for each in step.options],
            {thread: number(operation) for thread, operation in step.pending.items()},
        )
        for step in steps
    ]
    last = {thread: number(operation) for thread, operation in pending.items()}
    return marshal.dumps((table, rows, last))


def decode(data: bytes) -> tuple[list[Executed], dict[int, Operation]]:
    """Return the steps that bytes hold, and what was left to do."""
    table, rows, last = marshal.loads(data) if data else ([], [], {})
    operations = [
        Operation(verb, "", tuple(Touch(location, mode) for location, mode in touches), NOWHERE)
        for verb, touches in table
    ]
    steps = [
        Executed(
            Option(*option),
            operations[operation],
            tuple(Option(*each) for each in options),
            {thread: operations[each] for thread, each in pending.items()},
        )
        for option, operation, options, pending in rows
    ]
    return steps, {thread: operations[each] for thread, each in last.items()}
