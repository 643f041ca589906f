"""What a machine of a cluster asks of its engine."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.algorithms.cluster.messages import NONE, Message, Process


class Send(NamedTuple):
    """Send a message. It may be lost: the machine sends it again when that is of use."""

    to: Process
    message: Message


class Apply(NamedTuple):
    """Apply the gradient that came with the message being handled: it makes this version of the shard."""

    version: int
    batch: int
    worker: int
    base: int


class Restore(NamedTuple):
    """Take the version that came with the message being handled as the shard's state."""

    shard: int
    version: int


class Forget(NamedTuple):
    """Drop the shard's state: the server is a spare again."""


class ComputeGradient(NamedTuple):
    """Compute the gradient of this batch, then call `WorkerMachine.computed`."""

    batch: int


class Adopt(NamedTuple):
    """Compute with the parameters of this shard that came with the message being handled, from now on."""

    shard: int
    version: int
    #: Whether they are the answer to a push.
    pushed: bool = False


class Finished(NamedTuple):
    """The worker has nothing left to do; at the desk, every batch is finished."""


class Changed(NamedTuple):
    """A shard has a new view; for the record of the run."""

    shard: int
    view: int
    members: tuple[int, ...]
    #: An acknowledged push may be missing: what is, is computed again.
    lossy: bool


class Again(NamedTuple):
    """These batches were finished or under way, and are leased again; for the record of the run."""

    batches: tuple[int, ...]
    #: So are all from this one on, given out before or not, or NONE.
    since: int = NONE


class Lost(NamedTuple):
    """The run cannot go on: no server holds this shard any longer."""

    shard: int


Output = Send | Apply | Restore | Forget | ComputeGradient | Adopt | Finished | Changed | Again | Lost


class Timing(NamedTuple):
    """The seconds after which machines act. Safety never depends on them."""

    #: Between two signs of life.
    heartbeat: float = 0.5
    #: Without a sign of life, until a process counts as gone.
    silence: float = 2.5
    #: Until an unanswered message is sent again.
    resend: float = 1.0
    #: Without progress of a backup that is sent something, until its shard goes on without it.
    stuck: float = 10.0
    #: Until a run ends that waits for servers that are all gone.
    patience: float = 60.0


TIMING = Timing()


def describe(thing: Any) -> str:
    """Return a message or an output in words."""
    fields = ", ".join(f"{name}={value}" for name, value in zip(thing._fields, thing, strict=True))
    return f"{type(thing).__name__}({fields})"
