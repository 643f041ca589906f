"""The exceptions and warnings, by what has happened: each group has an exit code of the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from paceline.errors.failure import Failure, few


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
        resumable = f"its last checkpoint is that after {updates:,}" if updates else "it has no checkpoint yet"
        message = f"stopped before the workers had finished an update; {resumable}"
        if loss is not None and updates:
            message = (
                f"stopped after {updates:,} of {of:,} updates, with train loss {loss:.4f}; a checkpoint is written"
            )
        if why:
            message = f"stopped before a checkpoint could be written: {why}; {resumable}"
        folder = shlex.quote(run)
        resume = f"\n  resume  paceline train --resume {folder}" if updates else ""
        super().__init__(f"{message}{resume}\n  look    paceline report {folder}")


class TrialFailed(RunFailed):
    """A trial of a tuning has no value; the other trials go on."""


class TrialStopped(PacelineError):
    """A scheduler has stopped this trial."""


class ReplayDiverged(PacelineError):
    """A replay did not give the recorded bits."""


class ProtocolError(PacelineError):
    """A state machine got an impossible event: a bug in Paceline."""


# Why a run that was started did not finish.


class Blamed(RunFailed):
    """One worker failed first and ended the run."""

    def __init__(self, failure: Failure) -> None:
        self.failure, self.worker = failure, failure.worker
        super().__init__(failure)

    def __str__(self) -> str:
        return self.failure.describe()


class WorkerFailed(Blamed):
    """A worker raised an exception, usually in the job's own code."""


class WorkerDied(Blamed):
    """A worker's process ended without a report, as by SIGKILL or for lack of memory."""


class WorkerSilent(Blamed):
    """Another worker waited for it, past the timeout."""


class NotFinite(RunFailed):
    """The loss was not a finite number, and the job says on_nan="stop"."""

    REMEDY = (
        "look at those samples, or take a lower learning rate or gradient_clip_norm=...; on_nan='skip' leaves such "
        "batches out, 'ignore' trains on"
    )

    def __init__(self, loss: float, update: int, samples: Sequence[int]) -> None:
        self.loss = loss
        super().__init__(f"the loss of update {update} is {loss}, with samples {few(samples)}: {self.REMEDY}")


class WaitedTooLong(RunFailed):
    """A wait passed its timeout, as the waiting worker reports it."""

    def __init__(self, worker: int, awaited: str, seconds: float, where: str) -> None:
        self.awaited, self.seconds = awaited, seconds
        super().__init__(
            f"worker {worker} waited {seconds:.0f} s for {awaited} {where}; that process is stopped, "
            f"swapping or very slow. Give a longer timeout (timeout=...) if the step really takes that long."
        )


class RunOver(RunFailed):
    """The run has ended at its head, which has the reason; another node of it ends, too."""

    def __init__(self, why: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(why)


# What cannot be met, by what is wrong with it: nothing was started.


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


# How communication between the processes of a run fails.


class CollectiveFailed(RunFailed, RuntimeError):
    """An operation of torch.distributed failed; also a `RuntimeError`, as in PyTorch."""


class CollectivesDiffer(CollectiveFailed):
    """Two ranks called different operations."""


class RankGone(CollectiveFailed):
    """A rank that others wait for has ended, or has left the group."""


class RankMissing(CollectiveFailed):
    """A rank did not call before the group's timeout."""


class ConnectionFailed(RunFailed):
    """A connection between two processes of a run failed."""


class FrameError(ConnectionFailed):
    """Bytes arrived that are not a frame, or not one that is allowed."""

    def __init__(self, part: str, what: str) -> None:
        self.part = part  # of the frame: magic, version, kind, number, integers, body
        super().__init__(what)


class PeerLost(ConnectionFailed):
    """The process at the other end has ended, is silent or does not read."""

    def __init__(self, peer: str, why: str, left: bool = False, silent: bool = False) -> None:
        self.peer, self.why, self.silent = peer, why, silent
        self.left = left  # on purpose, and has said so
        super().__init__(f"{peer} {why}")


class PeerRefused(ConnectionFailed):
    """One of the two ends did not accept the other."""


# What Paceline warns of.


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
