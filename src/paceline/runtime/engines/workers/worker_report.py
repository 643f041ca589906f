"""What every worker process does around its training: it measures itself, reports how it has ended, and ends."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from paceline.errors.failure import Position
from paceline.runtime.engines.workers.messages import Failed, FailureReport, Finished
from paceline.runtime.engines.workers.process import become_worker, core_wait, memory
from paceline.runtime.links.waiting import Cancelled


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
