"""A process that runs one leg after another, from its start to its end."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections import deque
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Never

from paceline.planning.tuner.study import Assignment
from paceline.planning.tuner.trial import Terms
from paceline.planning.tuner.trials import Ended, Objective, run_leg
from paceline.runtime.engines.workers.process import become_worker

if TYPE_CHECKING:
    from paceline.runtime.links.memory import SharedTensors

FLUSH = 0.004  # seconds for which the ends of legs are kept, so that many of them are sent at once
#: The kinds of messages to the tuner, each a tuple with its kind first.
READY, REPORT, END, UNUSABLE = "ready", "report", "end", "unusable"


def main(
    number: int, pipe: Connection, threads: int, terms: Terms, packed: list[bytes], shared: SharedTensors | None
) -> None:
    """Take legs from the pipe until it closes. Never returns."""
    become_worker(False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when PyTorch is imported, which may be later
        os.environ[name] = str(threads)
    try:
        objective = _unpacked(packed.pop(), shared)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        pipe.send((READY,))
        Worker(objective, terms, pipe, number).work()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the tuner has closed the pipe
    except (pickle.PickleError, ImportError, AttributeError) as error:
        pipe.send((UNUSABLE, f"{type(error).__name__}: {error}"))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _unpacked(packed: bytes, shared: SharedTensors | None) -> Any:
    """Return what trials run. What needs no tensors is loaded without importing PyTorch, which takes seconds."""
    if shared is None:
        return pickle.loads(packed)
    from paceline.training.jobs.pickling import unpack

    return unpack(packed, shared.open())


class Worker:
    """Runs the legs that come through the pipe. The ends of short ones are sent together."""

    def __init__(self, objective: Objective, terms: Terms, pipe: Connection, number: int) -> None:
        self.objective, self.terms, self.pipe, self.number = objective, terms, pipe, number
        #: Legs that were received and have not begun, and ends that were not sent yet.
        self.waiting: deque[Assignment] = deque()
        self.ended: list[Ended] = []
        self.flushed = time.perf_counter()

    def work(self) -> Never:
        """Run legs until the pipe is closed."""
        while True:
            # Before this process waits, since the study may have nothing to send until it knows of these ends.
            if not self.waiting:
                self.flush()
                self.waiting.extend(self.pipe.recv())
            assignment = self.waiting.popleft()
            report = partial(self.report, assignment.leg.trial)
            self.ended.append(run_leg(self.objective, assignment, self.terms, report, self.number))
            if time.perf_counter() - self.flushed > FLUSH:
                self.flush()

    def report(self, trial: int, step: int, value: float) -> bool:
        """Report a value and return the answer; legs may arrive before it."""
        self.flush()
        self.pipe.send((REPORT, trial, step, value))
        # The study may have sent further legs before it read the report.
        while not isinstance(answer := self.pipe.recv(), bool):
            self.waiting.extend(answer)
        return answer

    def flush(self) -> None:
        if self.ended:
            self.pipe.send((END, self.ended))
            self.ended = []
        self.flushed = time.perf_counter()
