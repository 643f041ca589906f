"""What a worker process and its parent say to each other: its assignment, its messages, its last report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns as now
from traceback import format_exception
from typing import TYPE_CHECKING

from paceline.algorithms.agenda import Agenda
from paceline.errors import JobError, NotFinite, PacelineError, WaitedTooLong
from paceline.errors.failure import Position, users_traceback
from paceline.plans.plan import Plan
from paceline.runtime.engines.setup import Placement
from paceline.runtime.engines.workers.process import become_worker, core_wait, die_with_parent, memory
from paceline.runtime.engines.workers.state_buffers import ResumePoint
from paceline.runtime.links.memory import SharedTensors
from paceline.runtime.links.waiting import Cancelled
from paceline.training.data.opening import open_source
from paceline.training.data.source import Order, Reader, Source, TensorSource
from paceline.training.jobs.job import Job
from paceline.training.jobs.pickling import pack
from paceline.training.operators.planning import OperatorBlueprint
from paceline.training.splits.gradients import SplitBlueprint
from paceline.training.stages.cutting import Blueprint

if TYPE_CHECKING:
    from paceline.runtime.engines.setup import Setup


@dataclass(frozen=True)
class Ready:
    """The worker has built its model and waits for the start."""

    #: What the user is to know of that model; mostly nothing.
    note: str = ""


@dataclass(frozen=True)
class StateLeft:
    """The worker has written its state for a checkpoint, or many rows of the trace."""


@dataclass(frozen=True)
class Finished:
    """The worker has done all of its work, and its process ends."""

    #: Nanoseconds of training in which the worker could have run, but had no core.
    core_wait: int
    #: Bytes that the training took at most.
    peak_memory: int


@dataclass(frozen=True)
class Failed:
    """An exception ended the worker."""

    report: FailureReport


@dataclass(frozen=True)
class Died:
    """The pipe ended without `Finished` or `Failed`. The parent makes this message itself."""


Message = Ready | StateLeft | Finished | Failed | Died


@dataclass(frozen=True)
class FailureReport:
    """An exception in a worker, in a form that other processes can show."""

    what: str
    position: Position
    traceback: str
    advice: str
    #: What the worker was waiting for when the deadline passed; else empty.
    waited_for: str
    #: Whether `what` needs neither a position nor a traceback.
    complete: bool
    #: Nanoseconds of the monotonic clock, which all processes share.
    when: int

    @staticmethod
    def of(error: BaseException, position: Position) -> FailureReport:
        """Describe an exception that a worker raised at this position."""
        what, advice, lines = f"{type(error).__name__}: {error}".rstrip(": "), "", ""
        if not isinstance(error, PacelineError):
            what = what.splitlines()[0]  # the traceback has the rest
            lines = users_traceback(error) or "".join(format_exception(error))
        if isinstance(error, NotFinite):
            what, advice = f"the loss is {error.loss}", error.REMEDY
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            advice = "memory has run out: a smaller batch_size, or fewer workers"
        return FailureReport(
            what=what,
            position=position,
            traceback=lines,
            advice=advice,
            waited_for=error.awaited if isinstance(error, WaitedTooLong) else "",
            complete=isinstance(error, WaitedTooLong),
            when=now(),
        )


# The assignment that a worker process gets from its parent.


@dataclass
class Assignment:
    """Everything that one worker needs to start. It is pickled by value, so functions of a notebook travel, too."""

    number: int
    #: Without its data.
    job: Job
    plan: Plan
    agenda: Agenda
    moving: tuple[str, ...]
    placement: Placement
    #: A Dataset or a function that makes one; None if the data are shared tensors.
    data: object
    samples: int
    initial_sha256: str
    #: A folder that the parent deletes at the end.
    scratch: Path | None
    deadline: float
    resume_point: ResumePoint
    #: The blueprint of a pipeline; `job.model` is then a skeleton with the parts that this worker holds.
    blueprint: Blueprint | None = None
    #: The blueprint of split layers; `job.model` then has this worker's parts in place of its tensors.
    split: SplitBlueprint | None = None
    #: Which worker holds which operator of the model.
    operators: OperatorBlueprint | None = None
    #: Whether some parameter got no gradient from the first batch.
    some_unused: bool = False
    #: What the parent's model begins from, where a process shares memory with it; it travels beside the assignment.
    initial: SharedTensors | None = None
    #: What the worker has to say once it is ready.
    note: str = ""

    @staticmethod
    def of(
        setup: Setup, number: int, job: Job, scratch: Path | None, deadline: float, resume_point: ResumePoint
    ) -> Assignment:
        """Return the assignment of a worker, whose job may have a part of the model."""
        data = None if isinstance(setup.source, TensorSource) else setup.job.data
        return Assignment(
            number,
            job.with_(data=None, test=None),
            setup.plan,
            setup.agenda,
            setup.probe.moving,
            setup.placement,
            data,
            len(setup.source),
            setup.initial_sha256,
            scratch,
            deadline,
            resume_point,
            setup.blueprint,
            setup.split,
            setup.operators,
            setup.probe.some_unused,
        )

    def open_data(self, tensors: SharedTensors | None) -> Source:
        """Open the data: shared tensors, or what the assignment has. A stream's samples have been counted before."""
        if tensors is not None:
            return TensorSource(tensors.open())
        return open_source(self.data, self.job.seed, length=self.samples)

    def reader(self, source: Source, repeats: bool = False) -> Reader:
        """Return what reads this worker's chunks; `repeats`: it may read a chunk again."""
        job = self.job
        order = Order(self.samples, job.seed, job.shuffle, self.agenda.cuts)
        return Reader(source, order, job.num_workers, die_with_parent, repeats)

    def pack(self) -> bytes:
        """Pickle the assignment; JobError if something in the job belongs to this process only."""
        try:
            pickled: bytes = pack(self)
        except Exception as error:
            raise JobError(
                f"the job cannot be sent to another process: {error}. Something in its model, loss, optimizer or data "
                "belongs to this process only (an open file, a lock, a generator); make it inside a function"
            ) from error
        return pickled


# What every worker process does around its training: it measures itself, reports how it has ended, and ends.


class WorkerReport:
    """What a worker process reports of itself."""

    def __init__(self, send: Callable[[object], None], before: int) -> None:
        self.send, self._before, self._waited = send, before, 0
        #: Returns where the worker is; it is to be replaced as soon as more is known.
        self.position: Callable[[], Position] = Position

    def begin(self) -> None:
        """Start to measure the time for which the process has no core."""
        self._waited = core_wait()

    def finished(self, peak: int) -> None:
        """Report that the training is done; `peak` is the most memory that it took."""
        self.send(Finished(core_wait() - self._waited, peak - self._before))


@contextlib.contextmanager
def worker_process(pipe: Connection, pickled: int, memory_bounded: bool = False) -> Iterator[WorkerReport]:
    """Make this process a worker within the block, report what ends it, and end the process; never returns.

    `pickled` is how many bytes the assignment takes, which are freed; `memory_bounded` says whether memory is bounded.
    """
    become_worker(memory_bounded)
    report = WorkerReport(pipe.send, memory("RssAnon") - pickled)
    try:
        yield report
    except Cancelled:
        pass
    except BaseException as error:
        report.send(Failed(FailureReport.of(error, report.position())))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # without closing shared memory, of which tensors hold views; the kernel frees it
