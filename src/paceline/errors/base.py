"""The groups of errors, by what has happened: each has an exit code of the command line."""

from __future__ import annotations

import shlex


class PacelineError(Exception):
    """Every error that Paceline raises on purpose."""

    exit_code = 1


class UsageError(PacelineError):
    """The request cannot be met; nothing was started."""

    exit_code = 2


class RunFailed(PacelineError):
    """The run was started and did not finish."""


class RunStopped(PacelineError):
    """Ctrl-C or SIGTERM ended the run; `--resume` goes on from its last checkpoint."""

    def __init__(self, signal: int, updates: int, of: int, loss: float | None, run: str, why: str = "") -> None:
        """Describe how far the run came.

        Args:
            signal: What ended it.
            updates: Those of its last checkpoint; 0 if it has none.
            of: All updates of the run.
            loss: The newest training loss; None if the signal came before the training.
            run: The run's folder.
            why: What ended it before a checkpoint of this moment was written, as one line; empty if one was.
        """
        self.updates, self.run, self.why = updates, run, why
        self.exit_code = 128 + signal  # as a shell has it of a process that the signal ended
        kept = f"its last checkpoint is that after {updates:,}" if updates else "it has no checkpoint yet"
        said = f"stopped before the workers had finished an update; {kept}"
        if loss is not None and updates:
            said = f"stopped after {updates:,} of {of:,} updates, with train loss {loss:.4f}; a checkpoint is written"
        if why:
            said = f"stopped before a checkpoint could be written: {why}; {kept}"
        folder = shlex.quote(run)
        resume = f"\n  resume  paceline train --resume {folder}" if updates else ""
        super().__init__(f"{said}{resume}\n  look    paceline report {folder}")


class TrialFailed(RunFailed):
    """A trial of a tuning has no value; the other trials go on."""


class TrialStopped(PacelineError):
    """A scheduler has stopped this trial."""


class ReplayDiverged(PacelineError):
    """A replay did not give the recorded bits."""


class ProtocolError(PacelineError):
    """A state machine got an impossible event: a bug in Paceline."""
