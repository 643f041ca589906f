"""The error that ends a run: which worker failed first, in which update, and which workers are only victims."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from paceline.errors import NotFinite, RunFailed, WorkerDied, WorkerFailed, WorkerSilent
from paceline.errors.failure import Failure, Position, few
from paceline.runtime.engines.workers.messages import FailureReport
from paceline.runtime.engines.workers.process import oom_kills, state_of
from paceline.training.data.source import Source

OTHER_WORKER = re.compile(r"worker (\d+)")
#: Seconds in which a process that was killed, or has closed its pipe at its end, is gone even on a busy machine.
GONE = 60.0


class Ending(NamedTuple):
    """How a process ended."""

    how: str  # the name of a signal, or the exit code
    #: Whether the kernel's out-of-memory killer has ended a process of this machine meanwhile.
    out_of_memory: bool

    @staticmethod
    def of(process: BaseProcess, oom_kills_before: int) -> Ending:
        """Describe the end of a child."""
        process.join(GONE)
        code = process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return Ending(how, how == "SIGKILL" and oom_kills() > oom_kills_before)


def process_state(process: BaseProcess) -> str:
    """Describe what a process is at, as a sentence."""
    return f"Its process {process.pid} {state_of(process.pid)}"


def not_finite(source: Source, samples: Sequence[int]) -> list[int]:
    """Return those of the samples that hold NaN or an infinite number, as far as they can be read again."""
    numbers = []
    with contextlib.suppress(Exception):  # a Dataset's own, which has not failed before
        for number in samples:
            leaves = tree_leaves(source.batch(torch.tensor([number]), 0))
            if any(isinstance(leaf, Tensor) and not bool(leaf.isfinite().all()) for leaf in leaves):
                numbers.append(number)
    return numbers


class Diagnosis:
    """Makes the errors of one run. `victims` are the workers that the error stops although they are not its cause.

    `doing` has the update of each worker; `state` describes what a worker's process is at; `source` has the samples.
    """

    def __init__(self, doing: Sequence[int], state: Callable[[int], str], source: Source, deadline: float) -> None:
        self.doing, self.state, self.source, self.deadline = doing, state, source, deadline

    def failed(self, number: int, report: FailureReport, victims: list[int], stopped: Sequence[int] = ()) -> RunFailed:
        """Make the error for an exception in a worker; `stopped` are workers whose processes are, by SIGSTOP.

        A worker that has waited for any other one's message does not know whose is missing: one that is stopped is.
        """
        late = OTHER_WORKER.fullmatch(report.waited_for)
        if late or (report.waited_for and stopped):
            silent = int(late[1]) if late else stopped[0]
            return self._silent(silent, number, sorted({*victims, number} - {silent}))
        if report.complete:
            return RunFailed(report.what)
        failure = Failure(number, f"failed first: {report.what}", report.position, victims)
        failure.traceback, failure.advice = report.traceback, report.advice
        if report.advice == NotFinite.REMEDY and (bad := not_finite(self.source, report.position.samples)):
            which = f"sample {bad[0]} of the data holds" if len(bad) == 1 else f"samples {few(bad)} of the data hold"
            failure.advice = f"{which} NaN or infinity: correct or drop it; on_nan='skip' leaves such batches out"
        return WorkerFailed(failure)

    def _silent(self, number: int, waiting: int, victims: list[int]) -> WorkerSilent:
        """Make the error for a worker that another one has waited for past the deadline."""
        what = f"did not come: worker {waiting} waited {self.deadline:.0f} s for it. {self.state(number)}"
        advice = "give a longer timeout (timeout=..., --timeout) if a step really takes that long"
        return WorkerSilent(Failure(number, what, Position(self.doing[number]), victims, advice))

    def stopped(self, number: int, victims: list[int]) -> WorkerSilent:
        """Make the error for a worker that is stopped, and that no other has named."""
        what = f"was stopped for more than {self.deadline:.0f} s. {self.state(number)}"
        advice = "let it go on in time (SIGCONT), or give a longer timeout (timeout=..., --timeout)"
        return WorkerSilent(Failure(number, what, Position(self.doing[number]), victims, advice))

    def died(self, number: int, ending: Ending, victims: list[int]) -> WorkerDied:
        """Make the error for a worker whose process ended without a message."""
        advice = "under a plan with a server (downpour, ssp, ...) the others would have finished its work"
        if ending.out_of_memory:
            advice = f"the kernel's out-of-memory killer has struck: a smaller batch_size, or fewer workers; {advice}"
        elif ending.how == "SIGKILL":
            advice = f"it is not known who sent it; the kernel logs it (`dmesg`) when memory runs out; {advice}"
        return WorkerDied(Failure(number, f"died ({ending.how})", Position(self.doing[number]), victims, advice))
