"""A run from its start, or from a checkpoint, on: what was decided before it, handed to its engine whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.runtime.engines.checkpoints import Checkpoint, CheckpointRequest
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.folder import RunFolder
from paceline.runtime.runs.live import Heartbeat
from paceline.runtime.runs.progress import Follower


@dataclass(frozen=True)
class Life:
    """Everything that an engine needs to train."""

    setup: Setup
    heartbeat: Heartbeat
    place: RunFolder = field(default_factory=lambda: RunFolder(None))
    #: Seconds that a worker waits for another before the run fails.
    deadline: float = 120.0
    #: What follows the run while it goes on.
    follower: Follower | None = None
    #: The checkpoints to write, and the one to begin with; None where the run keeps none.
    request: CheckpointRequest | None = None

    @property
    def begin(self) -> Checkpoint | None:
        """The checkpoint to begin with."""
        return self.request.start if self.request is not None else None
