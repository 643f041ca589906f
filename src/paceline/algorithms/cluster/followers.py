"""The servers that follow a primary, as it sees them, and what it keeps for them."""

from __future__ import annotations

import math
from typing import NamedTuple

from paceline.algorithms.cluster.messages import NONE
from paceline.algorithms.cluster.outputs import Timing

NEVER = -math.inf


class Entry(NamedTuple):
    """A push that the primary has applied."""

    version: int
    batch: int
    worker: int
    base: int


class Follower:
    """A backup or a spare, as its primary sees it."""

    def __init__(self, now: float, needs: int) -> None:
        #: The version up to which it has confirmed every one; NONE until it is in sync.
        self.confirmed = NONE
        #: The log is kept for it after this version.
        self.needs = needs
        #: When it was last sent something, or confirmed something.
        self.since = now
        #: When it was last sent a copy of everything, which may take long; NEVER if it has not been.
        self.copied = NEVER
        #: When it confirmed more than before, or began to lack something.
        self.progress = now

    @property
    def has(self) -> int:
        """The version up to which it needs nothing of the log."""
        return max(self.needs, self.confirmed)

    def stuck(self, now: float, version: int, timing: Timing) -> bool:
        """Whether it lacks something of a version, and has made no progress for too long."""
        copying = self.confirmed == NONE and self.copied != NEVER
        return self.confirmed < version and now - self.progress > (timing.patience if copying else timing.stuck)
