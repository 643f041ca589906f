"""The trace of a history, as the head would write it, and a replay of it without numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.algorithms.cluster.outputs import Apply
from paceline.algorithms.server.messages import Compute, Pull, Push
from paceline.plans.methods.server import ParameterServer
from paceline.runtime.engines.cluster.servers.history import by_rank, history_dtype, rows_of_pushes
from paceline.runtime.engines.replay.from_trace import Order, Recorded
from paceline.runtime.runs.trace import Columns


class Gradient(NamedTuple):
    """What a worker pushes to a shard: the shard's parameters, and the versions of all, that it was computed from."""

    parameters: int
    bases: tuple[int, ...]


class Applied(NamedTuple):
    """A push that a server has applied."""

    push: Apply
    gradient: Gradient


def fault_of_replay(shards: Sequence[Sequence[Applied]], ranks: int) -> str | None:
    """Return where a replay of what the shards have applied computes from other versions; None if it does not.

    Processes are numbered as on a cluster of so many ranks, so that several of one rank may be alive.
    """
    histories, none = [_history(shard, len(shards)) for shard in shards], [0] * len(shards)
    rows = by_rank(np.concatenate(rows_of_pushes(histories, none, none)), ranks)
    recorded = Recorded.of(ParameterServer(), rows, ranks, none, apart=True)
    pulled, computed = [dict[int, int]() for _ in recorded.lines], [dict[int, int]() for _ in recorded.lines]
    order = Order(recorded, none, 1, gathers=False)
    for command, before in order.steps():
        if isinstance(command, Pull):
            pulled[command.worker][command.shard] = before
        elif isinstance(command, Compute):
            computed[command.worker] = dict(pulled[command.worker])
        elif isinstance(command, Push):
            push, (_, bases) = shards[command.shard][before]
            if (push.batch, dict(enumerate(bases))) != (command.batch, computed[command.worker]):
                return (
                    f"the replay makes version {push.version} of shard {command.shard} by batch {command.batch} from "
                    f"{computed[command.worker]}, where it was batch {push.batch} from {bases}"
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
