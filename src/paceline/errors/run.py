"""Why a run that was started did not finish."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors.base import RunFailed
from paceline.errors.failure import Failure, few


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
