"""The exceptions that Paceline raises on purpose, and its warnings.

Most programs need no more than the groups `UsageError`, `RunFailed`, `RunStopped` and `ReplayDiverged`, which are
also names of `paceline`; the members of a group say what exactly went wrong.

    PacelineError
    ├── UsageError              the request cannot be met; nothing was started         (exit code 2)
    │   ├── PlanError           a plan's name, option or combination
    │   ├── JobError            a job's model, data, loss or optimizer
    │   ├── DataError           a recipe, a source of rows or a folder of shards
    │   ├── RunFolderError      a run's folder cannot be read or written
    │   ├── MachineError        this machine cannot run it
    │   ├── TuningError         a tuning's space, search or journal
    │   └── SecurityError       anyone could connect, or other users can read the keys
    ├── RunFailed               the run was started and did not finish                   (exit code 1)
    │   ├── Blamed              one worker failed first; `.failure` describes it
    │   │   ├── WorkerFailed    it raised an exception: the user's code, usually
    │   │   ├── WorkerDied      its process ended without a report (SIGKILL, out of memory)
    │   │   └── WorkerSilent    another waited for it, past the timeout
    │   ├── WaitedTooLong       a wait passed its timeout, as the waiting worker reports it
    │   ├── RunOver             rank 0 of a cluster has ended the run, so this rank ends too
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
    ├── TrialStopped            the search has stopped this trial; raised where the trial reports
    ├── ReplayDiverged          a replay did not give the recorded bits                  (exit code 1)
    └── ProtocolError           a state machine got an impossible event: a bug in Paceline

and warns of: JobWarning, PlanWarning, CrowdedWarning, DeathWarning, CheckpointWarning, PacelineDeprecationWarning.

Every message says what was given, what is allowed, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paceline.errors.arguments import is_positive, is_whole, plain, whole
from paceline.errors.exceptions import (
    Blamed,
    CheckpointWarning,
    CollectiveFailed,
    CollectivesDiffer,
    ConnectionFailed,
    CrowdedWarning,
    DataError,
    DeathWarning,
    FrameError,
    JobError,
    JobWarning,
    MachineError,
    NotFinite,
    PacelineDeprecationWarning,
    PacelineError,
    PeerLost,
    PeerRefused,
    PlanError,
    PlanWarning,
    ProtocolError,
    RankGone,
    RankMissing,
    ReplayDiverged,
    RunFailed,
    RunFolderError,
    RunOver,
    RunStopped,
    SecurityError,
    TrialFailed,
    TrialStopped,
    TuningError,
    UsageError,
    WaitedTooLong,
    WorkerDied,
    WorkerFailed,
    WorkerSilent,
)
from paceline.errors.failure import users_place, users_traceback
from paceline.errors.renames import suggest

__all__ = [
    "Blamed",
    "CheckpointWarning",
    "CollectiveFailed",
    "CollectivesDiffer",
    "ConnectionFailed",
    "CrowdedWarning",
    "DataError",
    "DeathWarning",
    "FrameError",
    "JobError",
    "JobWarning",
    "MachineError",
    "NotFinite",
    "PacelineDeprecationWarning",
    "PacelineError",
    "PeerLost",
    "PeerRefused",
    "PlanError",
    "PlanWarning",
    "ProtocolError",
    "RankGone",
    "RankMissing",
    "ReplayDiverged",
    "RunFailed",
    "RunFolderError",
    "RunOver",
    "RunStopped",
    "SecurityError",
    "TrialFailed",
    "TrialStopped",
    "TuningError",
    "UsageError",
    "WaitedTooLong",
    "WorkerDied",
    "WorkerFailed",
    "WorkerSilent",
    "is_positive",
    "is_whole",
    "plain",
    "suggest",
    "users_code",
    "users_place",
    "users_traceback",
    "whole",
]


@contextmanager
def users_code(
    what: str, error: type[PacelineError] = JobError, hint: Callable[[BaseException], str] = lambda fault: ""
) -> Iterator[None]:
    """Raise what the user's own code raises as an error of the job, with a hint and the user's lines."""
    try:
        yield
    except PacelineError:
        raise
    except (Exception, SystemExit) as fault:
        message = f"{what} fails: {type(fault).__name__}: {fault}{hint(fault)}\n{users_traceback(fault)}"
        raise error(message.rstrip()) from fault
