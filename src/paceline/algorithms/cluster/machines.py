"""The classes of machines that a simulation or an exploration is made of."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.cluster.desk import DeskMachine
from paceline.algorithms.cluster.shard import ShardMachine
from paceline.algorithms.cluster.worker import WorkerMachine


@dataclass(frozen=True)
class Machines:
    """The classes of machines; a test plants a fault by handing in another one."""

    desk: type[DeskMachine] = DeskMachine
    shard: type[ShardMachine] = ShardMachine
    worker: type[WorkerMachine] = WorkerMachine
