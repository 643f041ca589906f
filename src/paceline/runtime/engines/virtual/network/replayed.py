"""The trace of a history, as the head would write it, and a replay of it without numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.cluster.outputs import Apply
from paceline.runtime.engines.cluster.servers.history import by_rank, history_dtype, rows_of_pushes
from paceline.runtime.engines.replay.from_trace import Order, recorded_pushes
from paceline.runtime.runs.trace import Columns


class Gradient(NamedTuple):
    """What a worker pushes to a shard: the shard's parameters, and the versions of all, that it was computed from."""

    parameters: int
    bases: tuple[int, ...]


class Applied(NamedTuple):
    """A push that a server has applied."""

    push: Apply
    gradient: Gradient


def fault_of_replay(shards: Sequence[Sequence[Applied]], batches: int, ranks: int) -> str | None:
    """Return where a replay of what the shards have applied computes a gradient from other versions; None if nowhere.

    Processes are numbered as on a cluster of so many ranks, so that several of one rank may be alive.
    """
    histories, none = [_history(shard, len(shards)) for shard in shards], [0] * len(shards)
    rows = by_rank(np.concatenate(rows_of_pushes(histories, none, none)), ranks)
    recorded = recorded_pushes(Agenda(batches, 1, 1), rows, ranks)
    pulled, computed = [dict[int, int]() for _ in recorded.lines], [dict[int, int]() for _ in recorded.lines]
    order = Order(recorded, list(none), 1, False)
    for step in order.steps():
        if step.what == "pull":
            pulled[step.worker][step.shard] = step.before
        elif step.what == "compute":
            computed[step.worker] = dict(pulled[step.worker])
        elif step.what == "push":
            push, (_, bases) = shards[step.shard][step.before]
            if (push.batch, dict(enumerate(bases))) != (step.number, computed[step.worker]):
                return (
                    f"the replay makes version {push.version} of shard {step.shard} by batch {step.number} from "
                    f"{computed[step.worker]}, where it was batch {push.batch} from {bases}"
                )
    if order.versions != [len(shard) for shard in shards]:
        return f"the replay ends at versions {order.versions}, and the shards have {list(map(len, shards))}"
    return None


def _history(shard: Sequence[Applied], shards: int) -> Columns:
    rows = np.zeros(len(shard), history_dtype(shards))
    for row, (push, gradient) in zip(rows, shard, strict=True):
        row["version"], row["batch"], row["worker"], row["base"], row["bases"] = *push, gradient.bases
        row["start"] = row["end"] = push.version
    return rows
