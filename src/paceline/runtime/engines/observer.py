"""The observer of a run follows its workers' traces, progress and status, and says which worker failed first."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from paceline.errors import NotFinite, RunFailed, WorkerDied, WorkerFailed, WorkerSilent
from paceline.errors.failure import Failure, Position, few
from paceline.runtime.engines.checkpoints import history
from paceline.runtime.engines.outcome import Life
from paceline.runtime.engines.workers.messages import FailureReport
from paceline.runtime.engines.workers.process import oom_kills, state_of
from paceline.runtime.runs.live import Phase, ProcessRecord, WorkerLive, WorkerStatus
from paceline.runtime.runs.progress import Progress
from paceline.runtime.runs.trace import DTYPE, Columns, Kind, Row, Trace, TraceWriter, weighted_losses
from paceline.training.data.source import Source


class Watched(Protocol):
    """What the observer reads of the workers, by their numbers."""

    @property
    def doing(self) -> Sequence[int]:
        """The update or batch that each worker is in; -1 before the first."""

    def drain(self) -> list[Columns]:
        """Take the rows that each worker has written since the last call, in this process's time."""

    def asleep(self, worker: int) -> bool:
        """Whether a worker sleeps until another one rings."""

    def offers(self, worker: int) -> int:
        """Return how far a worker is in its collectives."""


class Observer:
    """Drains the traces, reports progress and writes the heartbeat of one run.

    `finished` and `dead` are the parent's own sets of workers, which it keeps up to date.
    """

    def __init__(self, life: Life, workers: Watched, finished: Collection[int], dead: Collection[int]) -> None:
        self.setup, self.workers, self.start = life.setup, workers, life.begin
        self.finished, self.dead = finished, dead
        self.heartbeat, self.follower = life.heartbeat, life.follower
        self.processes: list[ProcessRecord] = []
        self.started_at = 0  # nanoseconds of the monotonic clock; 0 before the workers begin to train
        self.writer: TraceWriter | None = None
        self._deaths: list[tuple[int, int]] = []  # (worker, when) that are not in the trace yet
        self._own: list[Row] = []  # further rows that are not in the trace yet
        #: Called with rows that were put into the trace.
        self.copy: Callable[[Sequence[Columns]], None] = lambda rows: None

    @property
    def origin(self) -> int:
        """The time at which the training would have begun if the run had not been interrupted."""
        return self.started_at - (self.start.nanoseconds if self.start else 0)

    def processes_started(self, processes: Sequence[ProcessRecord]) -> None:
        """Record the processes of the workers in the heartbeat."""
        self.processes = list(processes)
        self.heartbeat.beat(Phase.STARTING, self._updates, self._lines, now=True)

    def process_started(self, number: int, process: ProcessRecord) -> None:
        """Record the process of one worker in the heartbeat."""
        self.processes[number] = process

    def beat(self) -> None:
        """Write the heartbeat while the workers start."""
        self.heartbeat.beat(Phase.STARTING, self._updates, self._lines)

    def training_started(self, trace_file: Path | None, earlier: Columns | None = None) -> None:
        """Open the trace; a resumed run's begins with what led to its checkpoint, another head's with `earlier`."""
        if trace_file is not None and self.start is not None:
            earlier = history(Trace.open(trace_file), self.start, self.setup.agenda)
        self.writer = TraceWriter(trace_file, self.origin, earlier)

    def worker_died(self, number: int) -> None:
        """Note a death for the trace; the next look writes its row."""
        self._deaths.append((number, time.perf_counter_ns()))

    def note(self, rows: Sequence[Row]) -> None:
        """Note rows of this process's own for the trace; the next look writes them."""
        self._own += rows

    def poll(self, stopping: bool) -> None:
        """Drain the traces and report; called several times a second, and whenever a worker sends a message."""
        rows = self._drain()
        self.heartbeat.beat(Phase.TRAINING, self._updates, self._lines)
        if self.follower is not None:
            self.follower(self._report(rows, stopping))

    def close(self) -> Trace:
        """Drain what is left and return the whole trace."""
        assert self.writer is not None
        self._drain()
        return self.writer.close()

    @property
    def _updates(self) -> int:
        return max(self.start.updates if self.start else 0, max(self.workers.doing) + 1)

    def _drain(self) -> list[Columns]:
        """Move new rows from the workers' rings to the trace."""
        assert self.writer is not None
        rows = self.workers.drain()
        for number, when in self._deaths:
            # A worker may die before the training begins, which is where the trace begins.
            at = max(when, self.started_at)
            rows.append(Trace.of([Row(Kind.DEATH, number, self.workers.doing[number], start=at, end=at)]).rows)
        self._deaths.clear()
        rows += [Trace.of([row]).rows for row in self._own]
        self._own.clear()
        for part in rows:
            self.writer.append(part)
        self.copy(rows)
        return rows

    def _report(self, rows: list[Columns], stopping: bool) -> Progress:
        """Describe the progress of the run."""
        # Of each worker its newest loss: an older one would be averaged with what came after it.
        computed = [r[(r["kind"] == Kind.COMPUTE) & (r["samples"] > 0)][-1:] for r in rows]
        losses, weights = weighted_losses(np.concatenate([*computed, np.empty(0, DTYPE)]))
        updates = self._updates
        return Progress(
            updates=updates,
            total_updates=self.setup.agenda.updates,
            samples=self.setup.agenda.samples_until(updates),
            seconds=(time.perf_counter_ns() - self.origin) / 1e9,
            loss=float(losses.sum() / weights.sum()) if weights.any() else None,
            workers=self.setup.plan.workers,
            finished=tuple(sorted(self.finished)),
            dead=tuple(sorted(self.dead)),
            asleep=tuple(filter(self.workers.asleep, range(self.setup.plan.workers))),
            collective_steps=tuple(map(self.workers.offers, range(self.setup.plan.workers))),
            in_step=self.setup.plan.traits.synchronous,
            resumed_updates=self.start.updates if self.start else 0,
            resumed_seconds=(self.started_at - self.origin) / 1e9,
            stopping=stopping,
            rows=tuple(rows),
        )

    def _lines(self) -> list[WorkerLive]:
        return [
            WorkerLive(number, process, self._status(number), self.workers.doing[number])
            for number, process in enumerate(self.processes)
        ]

    def _status(self, number: int) -> WorkerStatus:
        if number in self.dead:
            return WorkerStatus.DEAD
        if number in self.finished:
            return WorkerStatus.FINISHED
        if not self.started_at:
            return WorkerStatus.STARTING
        return WorkerStatus.WAITING if self.workers.asleep(number) else WorkerStatus.TRAINING


# The error that ends a run: which worker failed first, in which update, and which workers are only victims.

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
        # The pipe is closed before the process has ended, and until then there is no exit code.
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
        # Who waits in vain reports first, and is not at fault.
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
