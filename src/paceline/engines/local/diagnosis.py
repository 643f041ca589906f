"""The error that ends a run: which worker failed first, in which update, and which workers are only victims."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

from paceline.engines.local.arena import Arena
from paceline.engines.local.messages import FailureReport
from paceline.engines.local.process import oom_kills, state_of
from paceline.errors import RunFailed, WorkerDied, WorkerFailed, WorkerSilent
from paceline.errors.failure import Failure, Position

OTHER_WORKER = re.compile(r"worker (\d+)")


class Diagnosis:
    """Makes the errors of one run. `victims` are the workers that the error stops although they are not its cause."""

    def __init__(self, arena: Arena, processes: Sequence[BaseProcess], deadline: float) -> None:
        self.arena, self.processes, self.deadline = arena, processes, deadline
        self.oom_kills = oom_kills()  # before the run

    def failed(self, number: int, report: FailureReport, victims: list[int]) -> RunFailed:
        """Make the error for an exception in a worker."""
        if late := OTHER_WORKER.fullmatch(report.waited_for):
            silent = int(late[1])
            return self._silent(silent, number, sorted({*victims, number} - {silent}))
        if report.complete:
            return RunFailed(report.what)
        failure = Failure(number, f"failed first: {report.what}", report.position, victims)
        failure.traceback, failure.advice = report.traceback, report.advice
        return WorkerFailed(failure)

    def _silent(self, number: int, waiting: int, victims: list[int]) -> WorkerSilent:
        """Make the error for a worker that another one has waited for past the deadline."""
        process = self.processes[number]
        what = (
            f"did not come: worker {waiting} waited {self.deadline:.0f} s for it. "
            f"Its process {process.pid} {state_of(process.pid)}"
        )
        advice = "give a longer deadline (deadline=..., --deadline) if a step really takes that long"
        return WorkerSilent(Failure(number, what, Position(self.arena.doing[number]), victims, advice))

    def died(self, number: int, victims: list[int]) -> WorkerDied:
        """Make the error for a worker whose process ended without a message."""
        process = self.processes[number]
        process.join(1)
        code = process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        advice = "under a plan with a server (downpour, ssp, ...) the others would have finished its work"
        if how == "SIGKILL" and oom_kills() > self.oom_kills:
            advice = f"the kernel's out-of-memory killer has struck: a smaller batch_size, or fewer workers; {advice}"
        elif how == "SIGKILL":
            advice = f"it is not known who sent it; the kernel logs it (`dmesg`) when memory runs out; {advice}"
        return WorkerDied(Failure(number, f"died ({how})", Position(self.arena.doing[number]), victims, advice))
