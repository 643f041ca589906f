"""What Paceline warns of."""

from __future__ import annotations


class JobWarning(UserWarning):
    """Something about the job that changes what parallel training computes."""


class PlanWarning(UserWarning):
    """Which plan was chosen for `plan="auto"`, and why."""


class CrowdedWarning(UserWarning):
    """More workers than cores, and what that cost."""


class DeathWarning(UserWarning):
    """A worker died, and the run goes on without it."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or there is none."""


class PacelineDeprecationWarning(DeprecationWarning):
    """A name that was used has a new one. The old one will be removed in a later version."""
