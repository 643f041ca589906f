"""What changed in the arithmetic of plans, so that a replay can say why an older run has other bits now."""

from __future__ import annotations

from typing import NamedTuple

from paceline.plans.plan import Plan
from paceline.runtime.engines.own_files import changed_files, changed_files_message
from paceline.runtime.runs.record import RunRecord


class Change(NamedTuple):
    """A change after which some plans round differently."""

    #: The `arithmetic_version` of runs from then on.
    version: int
    #: The methods whose trained bits it changed.
    methods: frozenset[str]
    what: str


CHANGES = (
    Change(
        2,
        frozenset({"LocalSteps", "Gossip"}),
        "a worker that steps on its own chunk takes the chunk's mean gradient as it is, which was before multiplied by "
        "the chunk's share of the batch and divided by it again",
    ),
)
ARITHMETIC_VERSION = CHANGES[-1].version


def why_bits_differ(record: RunRecord, plan: Plan) -> str:
    """Return the likely cause where a replay has other bits than its record."""
    since = [c for c in CHANGES if c.version > record.arithmetic_version and plan.method.name in c.methods]
    if not since and (changed := changed_files(record, record.job.origin.partition(":")[0])):
        return changed_files_message(changed)
    if not since:
        return (
            "Does the job draw random numbers that the seed does not determine, or has its data, loss or "
            "batch_transform a state that changes from call to call, of which each worker had its own?"
        )
    changes = "; ".join(f"since version {c.version}, {c.what}" for c in since)
    return (
        f"The run was recorded with arithmetic version {record.arithmetic_version}, this Paceline has "
        f"{ARITHMETIC_VERSION}: {changes}. To get the recorded bits, replay it with the Paceline that recorded it "
        f"(started {record.started[:10]})"
    )
