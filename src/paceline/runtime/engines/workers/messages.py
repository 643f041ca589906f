"""The messages of worker processes to their parent, one pipe per worker."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns as now
from traceback import format_exception

from paceline.errors import NotFinite, PacelineError, WaitedTooLong
from paceline.errors.failure import Position, users_traceback


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
