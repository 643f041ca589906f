"""The channels between neighbouring stages of a pipeline that different workers hold."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.links.mailbox import MailShape
from paceline.stages.segment import Blueprint


def mail_of(blueprint: Blueprint) -> Iterator[MailShape]:
    """Yield the mailboxes between each two neighbouring stages of different workers, one each way."""
    for stage, (here, there) in enumerate(zip(blueprint.stage_to_worker, blueprint.stage_to_worker[1:], strict=False)):
        if here != there:
            slots, count = blueprint.slots, len(blueprint.needs[stage + 1])
            yield MailShape((stage, stage + 1), count + blueprint.carries_chance, blueprint.bytes_on[stage], slots)
            yield MailShape((stage + 1, stage), count, blueprint.bytes_back[stage], slots)
