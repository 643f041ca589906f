"""What cannot be met, by what is wrong with it: nothing was started."""

from __future__ import annotations

from paceline.errors.base import UsageError


class PlanError(UsageError):
    """A plan's name, an option of it, or a combination that is not possible."""


class JobError(UsageError):
    """A job's model, data, loss or optimizer cannot be trained."""


class DataError(UsageError):
    """A recipe, a source of rows or a folder of shards."""


class TuningError(UsageError):
    """A space, a search or a journal of a tuning is not possible."""


class RunFolderError(UsageError):
    """A run's folder cannot be read or written."""


class MachineError(UsageError):
    """This machine cannot run it."""


class SecurityError(UsageError):
    """The run would accept unauthenticated connections, or other users can read its keys."""
