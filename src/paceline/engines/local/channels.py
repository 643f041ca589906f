"""The channels between neighbouring stages of a pipeline that different workers hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from paceline.links.mailbox import MailShape
from paceline.stages.segment import Blueprint


def mail_of(blueprint: Blueprint, lines: int = 1) -> Iterator[MailShape]:
    """Yield the mailboxes between each two neighbouring stages of different workers, one each way.

    There are as many lines of workers as the pipeline has replicas times workers inside a stage.
    """
    holders = blueprint.stage_to_worker
    for line in range(lines):
        for stage, (here, there) in enumerate(itertools.pairwise(holders)):
            if here != there:
                slots, count = blueprint.slots, len(blueprint.needs[stage + 1])
                on, back = (stage, stage + 1), (stage + 1, stage)
                yield MailShape(on, count + blueprint.carries_chance, blueprint.bytes_on[stage], slots, line)
                yield MailShape(back, count, blueprint.bytes_back[stage], slots, line)
