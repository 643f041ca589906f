"""The groups of errors, by what has happened: each has an exit code of the command line."""

from __future__ import annotations


class PacelineError(Exception):
    """Every error that Paceline raises on purpose."""

    exit_code = 1


class UsageError(PacelineError):
    """The request cannot be met; nothing was started."""

    exit_code = 2


class RunFailed(PacelineError):
    """The run was started and did not finish."""


class RunStopped(PacelineError):
    """Ctrl-C or SIGTERM ended the run; a checkpoint was written, from which `--resume` goes on."""

    def __init__(self, signal: int, updates: int, of: int, loss: float, run: str) -> None:
        self.updates, self.run = updates, run
        self.exit_code = 128 + signal  # as a shell has it of a process that the signal ended
        super().__init__(
            f"stopped after {updates:,} of {of:,} updates, with train loss {loss:.4f}; a checkpoint is written\n"
            f"  go on   paceline train --resume {run}\n"
            f"  look    paceline report {run}"
        )


class TrialFailed(RunFailed):
    """A trial of a tuning has no value; the other trials go on."""


class TrialStopped(PacelineError):
    """A scheduler has stopped this trial."""


class ReplayDiverged(PacelineError):
    """A replay did not give the recorded bits."""


class ProtocolError(PacelineError):
    """A state machine got an impossible event: a bug in Paceline."""
