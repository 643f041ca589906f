"""The channels between workers: of neighbouring stages of a pipeline, or each way between any two with operators."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from paceline.runtime.links.mailbox import MailShape
from paceline.training.operators.planning import OperatorBlueprint
from paceline.training.stages.blueprint import Blueprint

MESSAGES = 64  # slots of a mailbox between two workers with operators; what finds it full waits with its sender


class Channels(NamedTuple):
    """What workers exchange that hold parts of a model; by default, what those exchange that hold all of it."""

    mail: tuple[MailShape, ...] = ()
    #: The most bytes that a worker with parts of layers sends in one exchange.
    parts: int = 0
    #: Whether some workers add up gradients of the same parameters.
    sums: bool = True


#: Of workers that hold the whole model.
NO_CHANNELS = Channels()


def mail_of(blueprint: Blueprint, lines: int = 1) -> Iterator[MailShape]:
    """Yield the mailboxes between each two neighbouring stages of different workers, one each way.

    There are as many lines of workers as the pipeline has replicas times workers inside a stage.
    """
    holders = blueprint.stage_to_worker
    for line in range(lines):
        for stage, (source, target) in enumerate(itertools.pairwise(holders)):
            if source != target:
                slots, count = blueprint.slots, len(blueprint.needs[stage + 1])
                on, back = (stage, stage + 1), (stage + 1, stage)
                yield MailShape(on, count + blueprint.carries_chance, blueprint.bytes_on[stage], slots, line)
                yield MailShape(back, count, blueprint.bytes_back[stage], slots, line)


def mail_between(blueprint: OperatorBlueprint, workers: int) -> Iterator[MailShape]:
    """Yield the mailboxes from each worker with operators to each other one."""
    for ends in itertools.permutations(range(workers), 2):
        yield MailShape(ends, 1 + blueprint.tensors, blueprint.bytes, MESSAGES)
