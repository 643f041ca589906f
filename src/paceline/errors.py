"""Everything Paceline raises on purpose.

    PacelineError
    ├── UsageError              what was asked cannot be done; nothing was started       (exit code 2)
    │   ├── PlanError           a plan's name, option or combination
    │   ├── JobError            a job's model, data, loss or optimizer
    │   └── RunFolderError      a run's folder cannot be read or written
    ├── RunFailed               the run was started and did not finish                   (exit code 1)
    │   ├── WorkerFailed        a worker raised an exception: the user's code, usually
    │   ├── WorkerDied          a worker's process ended without a word (SIGKILL, out of memory)
    │   ├── WaitedTooLong       a wait passed its deadline
    │   └── CollectiveFailed    an operation of torch.distributed; also a RuntimeError, as PyTorch's own are
    │       ├── CollectivesDiffer   two ranks called different operations
    │       ├── RankGone            a rank that is waited for has ended, or has left the group
    │       └── RankMissing         a rank did not come before the group's timeout
    ├── RunStopped              SIGTERM: a checkpoint was written, and the run can go on       (exit code 143)
    ├── ReplayDiverged          a replay did not give the recorded bits                  (exit code 1)
    └── ProtocolError           a machine was told something impossible: a bug in Paceline

Every message says what was given, what is allowed, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


class RunFailed(PacelineError):
    pass


class WorkerFailed(RunFailed):
    def __init__(self, worker: int, where: str, traceback: str) -> None:
        self.worker, self.where, self.traceback = worker, where, traceback
        super().__init__(
            f"worker {worker} failed first, {where}; the others were stopped and are not the cause.\n"
            f"{traceback.rstrip()}"
        )


class WorkerDied(RunFailed):
    def __init__(self, worker: int, how: str, where: str, remedy: str) -> None:
        self.worker, self.how, self.where = worker, how, where
        super().__init__(f"worker {worker} died ({how}) {where}. {remedy}")


class WaitedTooLong(RunFailed):
    def __init__(self, worker: int, for_whom: str, seconds: float, where: str) -> None:
        super().__init__(
            f"worker {worker} waited {seconds:.0f} s for {for_whom} {where}; that process is stopped, "
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


class RunStopped(PacelineError):
    exit_code = 143  # as of a process that SIGTERM ended

    def __init__(self, updates: int, run: str) -> None:
        self.updates, self.run = updates, run
        super().__init__(
            f"SIGTERM: a checkpoint of update {updates} was written, and every worker was stopped. Go on with "
            f"`paceline train --resume {run}`, or pl.train(resume={run!r})"
        )


class ReplayDiverged(PacelineError):
    pass


class ProtocolError(PacelineError):
    pass


def suggest(given: str, allowed: Iterable[str]) -> str:
    """The end of a message about a wrong word: the nearest right one, then all of them."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=1)
    did_you_mean = f"did you mean {near[0]!r}? " if near else ""
    return f"{did_you_mean}Allowed: {', '.join(names)}"
