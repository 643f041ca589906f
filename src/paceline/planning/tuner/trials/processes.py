"""The workers of this machine: processes that are started once, each with a pipe to the tuner."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from torch import Tensor

from paceline.errors import TuningError
from paceline.planning.tuner.training import JobObjective
from paceline.planning.tuner.trial import Terms
from paceline.planning.tuner.trials import Objective
from paceline.planning.tuner.trials.dispatch import DIED, JOINED
from paceline.planning.tuner.trials.worker import main
from paceline.runtime.engines.workers import process as forkserver
from paceline.runtime.engines.workers.process import oom_kills
from paceline.runtime.links.memory import SharedTensors
from paceline.training.jobs.pickling import pack

Message = tuple[int, tuple[Any, ...]]


class Started(NamedTuple):
    """A process with its pipe."""

    process: BaseProcess
    pipe: Connection


class Processes:
    """A pool of worker processes; one that dies is replaced by one with its number.

    The processes of `parents` may have children of their own, as a trial needs that is itself a parallel run.
    """

    def __init__(
        self, objective: Objective, terms: Terms, workers: int, parents: bool = False, threads: int = 0
    ) -> None:
        self.terms, self.workers, self.parents = terms, workers, parents
        self.threads = threads or max(1, len(os.sched_getaffinity(0)) // workers)
        large: list[Tensor] = []
        try:
            self.packed = pack(objective, large)
        except Exception as error:
            raise TuningError(
                f"the job cannot be sent to another process: {type(error).__name__}: {error}; executor='here' "
                "runs it in this one"
            ) from error
        self.shared = SharedTensors(large) if large else None
        self._oom = oom_kills()
        trains = isinstance(objective, JobObjective) or parents
        forkserver.prepare(forkserver.PRELOAD if trains else _needed_by(objective))
        self.children = [self._begin(number) for number in range(workers)]
        #: What was not heard of yet: workers that have come.
        self._news: list[Message] = [(number, (JOINED,)) for number in range(workers)]

    def receive(self, seconds: float, beside: Sequence[Any] = ()) -> list[Message]:
        """Wait for messages, and for what else can be waited for `beside` them."""
        messages, self._news = self._news, []
        pipes: dict[Any, int] = {worker.pipe: number for number, worker in enumerate(self.children)}
        for ready in connection.wait([*pipes, *beside], 0 if messages else seconds):
            if (number := pipes.get(ready)) is None:
                continue
            try:
                messages.append((number, self.children[number].pipe.recv()))
            except (EOFError, OSError):
                messages += [(number, (DIED, self._replace(number))), (number, (JOINED,))]
        return messages

    def send(self, worker: int, message: Any) -> None:
        with contextlib.suppress(OSError):  # it is dead, of which its pipe tells
            self.children[worker].pipe.send(message)

    def end(self, worker: int) -> None:
        _kill(self.children[worker].process)

    def close(self) -> None:
        for worker in self.children:
            worker.pipe.close()  # at which a worker that is free ends
        for worker in self.children:
            worker.process.join(0.5)
            _kill(worker.process)
            worker.process.join()
            worker.process.close()
        if self.shared is not None:
            self.shared.memory.close()

    # --- within ---

    def _begin(self, number: int) -> Started:
        context = multiprocessing.get_context("forkserver")
        mine, theirs = context.Pipe()
        arguments = (number, theirs, self.threads, self.terms, [self.packed], self.shared)
        process = context.Process(target=main, args=arguments, daemon=not self.parents)
        with forkserver.nameless_main(), forkserver.interrupts_wait():
            process.start()
        theirs.close()
        return Started(process, mine)

    def _replace(self, number: int) -> str:
        """Start another process in place of one that is dead; return how that ended."""
        process, pipe = self.children[number]
        process.join()
        code = process.exitcode or 0
        process.close()
        pipe.close()
        self.children[number] = self._begin(number)
        return _how(code) + " (out of memory)" * (oom_kills() > self._oom)


def _needed_by(objective: Objective) -> list[str]:
    """Return the modules that workers need for a function of the user's; PyTorch is not among them."""
    module = getattr(objective, "__module__", "__main__")
    return ["paceline.planning.tuner.trials.worker", "cloudpickle", *([module] if module != "__main__" else [])]


def _kill(process: BaseProcess) -> None:
    with contextlib.suppress(ProcessLookupError, ValueError):
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)


def _how(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
