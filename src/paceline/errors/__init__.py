"""The exceptions that Paceline raises on purpose, and its warnings.

    PacelineError
    ├── UsageError              the request cannot be met; nothing was started         (exit code 2)
    │   ├── PlanError           a plan's name, option or combination
    │   ├── JobError            a job's model, data, loss or optimizer
    │   ├── RunFolderError      a run's folder cannot be read or written
    │   ├── MachineError        this machine cannot run it
    │   ├── TuningError         a tuning's space, search or journal
    │   └── SecurityError       nothing would keep strangers out, or others can read the keys
    ├── RunFailed               the run was started and did not finish                   (exit code 1)
    │   ├── Blamed              one worker failed first; `.failure` describes it
    │   │   ├── WorkerFailed    it raised an exception: the user's code, usually
    │   │   ├── WorkerDied      its process ended without a report (SIGKILL, out of memory)
    │   │   └── WorkerSilent    another waited for it, past the deadline
    │   ├── WaitedTooLong       a wait passed its deadline, as the waiting worker reports it
    │   ├── RunOver             it has ended at rank 0 of a cluster, and so does this rank
    │   ├── NotFinite           the loss was not a finite number, and the job says on_nan="stop"
    │   ├── TrialFailed         a trial of a tuning has no value; the other trials go on
    │   ├── CollectiveFailed    an operation of torch.distributed; also a RuntimeError, as in PyTorch
    │   │   ├── CollectivesDiffer   two ranks called different operations
    │   │   ├── RankGone            a rank that others wait for has ended, or has left the group
    │   │   └── RankMissing         a rank did not call before the group's timeout
    │   └── ConnectionFailed    a connection between two processes of a run
    │       ├── FrameError          bytes arrived that are not a frame, or not one that is allowed
    │       ├── PeerLost            the process at the other end has ended, is silent or does not read
    │       └── PeerRefused         one of the two ends did not accept the other
    ├── RunStopped              Ctrl-C or SIGTERM: a checkpoint was written; --resume goes on  (exit code 130, 143)
    ├── TrialStopped            a trial was stopped by the search, as it asked to be told
    ├── ReplayDiverged          a replay did not give the recorded bits                  (exit code 1)
    └── ProtocolError           a state machine got an impossible event: a bug in Paceline

and warns of: JobWarning, CrowdedWarning, DeathWarning, CheckpointWarning. Every message says what was given, what is
allowed, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from paceline.errors.failure import Failure, few, users_traceback


class PacelineError(Exception):
    exit_code = 1


class UsageError(PacelineError):
    exit_code = 2


class PlanError(UsageError):
    pass


class JobError(UsageError):
    pass


class RunFolderError(UsageError):
    pass


class MachineError(UsageError):
    pass


class SecurityError(UsageError):
    pass


class TuningError(UsageError):
    pass


class RunFailed(PacelineError):
    pass


class Blamed(RunFailed):
    """One worker failed first and ended the run."""

    def __init__(self, failure: Failure) -> None:
        self.failure, self.worker = failure, failure.worker
        super().__init__(failure)

    def __str__(self) -> str:
        return self.failure.describe()


class WorkerFailed(Blamed):
    pass


class WorkerDied(Blamed):
    pass


class WorkerSilent(Blamed):
    pass


class NotFinite(RunFailed):
    REMEDY = (
        "look at those samples, or take a lower learning rate or clip_norm=...; on_nan='skip' leaves such batches out, "
        "'ignore' trains on"
    )

    def __init__(self, loss: float, update: int, samples: Sequence[int]) -> None:
        self.loss = loss
        super().__init__(f"the loss of update {update} is {loss}, with samples {few(samples)}: {self.REMEDY}")


class WaitedTooLong(RunFailed):
    def __init__(self, worker: int, awaited: str, seconds: float, where: str) -> None:
        self.awaited, self.seconds = awaited, seconds
        super().__init__(
            f"worker {worker} waited {seconds:.0f} s for {awaited} {where}; that process is stopped, "
            f"swapping or very slow. Give a longer deadline (deadline=...) if the step really takes that long."
        )


class CollectiveFailed(RunFailed, RuntimeError):
    pass


class CollectivesDiffer(CollectiveFailed):
    pass


class RankGone(CollectiveFailed):
    pass


class RankMissing(CollectiveFailed):
    pass


class ConnectionFailed(RunFailed):
    pass


class FrameError(ConnectionFailed):
    def __init__(self, part: str, what: str) -> None:
        self.part = part  # of the frame: magic, version, kind, number, integers, body
        super().__init__(what)


class PeerLost(ConnectionFailed):
    def __init__(self, peer: str, why: str, left: bool = False) -> None:
        self.peer, self.why = peer, why
        self.left = left  # on purpose, and has said so
        super().__init__(f"{peer} {why}")


class PeerRefused(ConnectionFailed):
    pass


class RunStopped(PacelineError):
    def __init__(self, signal: int, updates: int, of: int, loss: float, run: str) -> None:
        self.updates, self.run = updates, run
        self.exit_code = 128 + signal  # as a shell has it of a process that the signal ended
        super().__init__(
            f"stopped after {updates:,} of {of:,} updates, with train loss {loss:.4f}; a checkpoint is written\n"
            f"  go on   paceline train --resume {run}\n"
            f"  look    paceline report {run}"
        )


class RunOver(RunFailed):
    """The run has ended at its head, which has the reason; another node of it ends, too."""

    def __init__(self, why: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(why)


class TrialFailed(RunFailed):
    pass


class TrialStopped(PacelineError):
    pass


class ReplayDiverged(PacelineError):
    pass


class ProtocolError(PacelineError):
    pass


@contextmanager
def users_code(what: str, error: type[PacelineError] = JobError) -> Iterator[None]:
    """Raise what the user's own code raises as an error of the job, with the user's lines."""
    try:
        yield
    except PacelineError:
        raise
    except Exception as fault:
        message = f"{what} fails: {type(fault).__name__}: {fault}\n{users_traceback(fault)}"
        raise error(message.rstrip()) from fault


class JobWarning(UserWarning):
    """Something about the job that changes what parallel training computes."""


class CrowdedWarning(UserWarning):
    """More workers than cores, and what that cost."""


class DeathWarning(UserWarning):
    """A worker died, and the run goes on without it."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or there is none."""


def suggest(given: str, allowed: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the nearest allowed one, then all of them."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=1)
    did_you_mean = f"did you mean {near[0]!r}? " if near else ""
    return f"{did_you_mean}Allowed: {', '.join(names)}"
