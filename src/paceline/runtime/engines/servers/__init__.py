"""Servers: one implementation of each kind, used by every engine.

    port.py           push and pull: the transaction on a shard that every kind shares
    gradient.py       a gradient arrives; the rule and the user's optimizer work at the shard
    gathering.py      gradients are held until a round is full
    centre.py         a replica is exchanged with a centre
    pairwise.py       a replica is averaged with a neighbour's
    hogwild.py        one memory, written without locks
    shard_memory.py   what a shard is made of, shared by processes or private to one

The machines of `algorithms.server` decide (lease, apply, hold, drop); a port carries a worker's push or pull to them
and does what they answer. On one machine a port works on shared memory under the shard's lock, and there is no server
process; the virtual engine and replay use the same ports on private memory. A port over a network is a further
`ServerPort`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from paceline.algorithms.rules import Averaging, Rule
from paceline.algorithms.server.actions import Action
from paceline.algorithms.server.events import Pull, Push
from paceline.plans.plan import Plan
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.native_step import native_step
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.store import LocalStore
from paceline.training.parameters.worker_state import WorkerState


class ServerPort(Protocol):
    """One worker's access to one shard."""

    #: The version of the shard that this worker computes with; -1 where there are no versions.
    base: int
    #: The user's optimizer over the shard, by which this worker steps it; None where it steps its own replica.
    optimizer: Optimizer | None

    @property
    def bytes(self) -> int:
        """The bytes that the last push moved, both ways."""

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        """Restore a resumed run; `saved` is this worker's state at the checkpoint, if it was part of the run then."""

    def begin_part(self) -> None:
        """Prepare for a batch that is the first of another part of the data."""

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        """Return what to push of what was computed."""

    def pull(self, event: Pull) -> Action:
        """Compute with the newest version from now on."""

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        """Push what `finalize` returned to the shard, and compute with the outcome from now on."""

    def values(self) -> list[Tensor]:
        """Return the parameters and moving buffers as far as this worker knows them."""

    def worker_state(self) -> WorkerState:
        """Return the state that is this worker's own, besides the shard."""


@dataclass
class WorkerSide:
    """The worker's side of a port: everything that a port needs of its worker."""

    number: int
    plan: Plan
    learner: Learner
    optimizer: Optimizer
    layout: Layout
    #: Writes gradients as messages; None where they travel as they are.
    encoder: GradientEncoder | None
    #: Waits until the trace has space for another row. To be called before a lock is taken: the process that drains the
    #: trace waits for the locks itself when it takes a checkpoint.
    ensure_trace_space: Callable[[], None]
    #: Writes a row of the trace.
    record: Callable[..., None]
    #: Writes the worker's own state for a checkpoint, with the version that it belongs to.
    write_state: Callable[[int, Callable[[], WorkerState]], None]

    @property
    def seed(self) -> int:
        return self.learner.replica.job.seed

    @property
    def schedule(self) -> Any:
        return self.learner.replica.job.lr_scheduler

    def local_store(self, rule: Rule | Averaging) -> LocalStore:
        """Return a store of the replica's parameters, wherever they lie in every step."""
        step = native_step(self.optimizer)
        return LocalStore(self.learner.replica.parameters, self.optimizer, self.schedule, rule, step)
