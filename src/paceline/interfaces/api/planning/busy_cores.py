"""Processes that compute steps of calibration jobs side by side, and say how long each took.

The parent names a job, how many processes are to compute it at once, with how many threads, and for how long. Cases of
one job alternate, so that another program on the machine slows all of them alike.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import NamedTuple

import torch

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.rules import GradientUpdate
from paceline.algorithms.rules.gradients import Plain
from paceline.errors import RunFailed
from paceline.interfaces.api.planning.calibration_jobs import calibration_job
from paceline.runtime.engines.workers.process import become_worker, interrupts_wait, nameless_main, prepare
from paceline.training.data.opening import open_source
from paceline.training.data.source import Order, Reader
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job
from paceline.training.parameters.store import LocalStore

WARM, LEAST = 2, 3  # steps
PATIENCE = 60.0  # seconds for an answer


class Case(NamedTuple):
    """A number of processes that compute at once, each with a number of threads."""

    busy: int
    threads: int


class Steps(NamedTuple):
    """Seconds of steps, of all processes."""

    compute: list[float]
    update: list[float]


class BusyCores:
    """A pool of processes; a context manager that ends them."""

    def __init__(self, processes: int) -> None:
        self.count = processes
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> BusyCores:
        context = multiprocessing.get_context("forkserver")
        with nameless_main():
            prepare()
            for _ in range(self.count):
                mine, theirs = context.Pipe()
                process = context.Process(target=_main, args=(theirs,))
                with interrupts_wait():
                    process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(mine)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def prepare_job(self, number: int) -> None:
        """Let every process make the job of this number, and warm it up."""
        self._ask(range(self.count), ("make", number, 0.0))

    def steps(self, case: Case, seconds: float) -> Steps:
        """Let so many processes compute at once for so long; return all their steps."""
        answers = self._ask(range(case.busy), ("steps", case.threads, seconds))
        return Steps([t for a in answers for t in a.compute], [t for a in answers for t in a.update])

    def _ask(self, processes: Sequence[int], request: tuple[str, int, float]) -> list[Steps]:
        for number in processes:
            self._pipes[number].send(request)
        timings = []
        for number in processes:
            try:
                if not self._pipes[number].poll(PATIENCE):
                    raise RunFailed(
                        f"a calibration process did not answer for {PATIENCE:.0f} s; is the machine stopped?"
                    )
                timings.append(self._pipes[number].recv())
            except (EOFError, OSError):
                raise RunFailed("a calibration process died; was it killed, or is there too little memory?") from None
        return timings


def _main(pipe: Connection) -> None:
    """Answer requests until the parent closes the pipe."""
    become_worker(memory_bounded=False)
    trainer: Trainer | None = None
    try:
        while True:
            what, number, seconds = pipe.recv()
            if what == "make":
                trainer = Trainer(calibration_job(number))
                trainer.steps(1, 0.0, WARM)
                pipe.send(Steps([], []))
            else:
                assert trainer is not None
                pipe.send(trainer.steps(number, seconds, LEAST))
    except EOFError:
        pass
    finally:
        os._exit(0)


class Trainer:
    """A worker's learner and store for one job, without an engine."""

    def __init__(self, job: Job) -> None:
        module = job.make_model().train()
        source = open_source(job.data, job.seed)
        replica = Replica(job, module, ())
        optimizer = job.make_optimizer(module, replica.parameters)
        self.chunk = Chunk(0, 0, 0, 0, len(source), 1.0)
        order = Order(len(source), job.seed, job.shuffle)
        self.learner = Learner(replica, Reader(source, order, 0, lambda _: None))
        self.store, self.rule = LocalStore(replica.parameters, optimizer, None, Plain()), Plain()

    def steps(self, threads: int, seconds: float, least: int) -> Steps:
        """Make steps for so long, and at least so many."""
        torch.set_num_threads(threads)
        timings, now = Steps([], []), time.perf_counter
        end = now() + seconds
        while now() < end or len(timings.compute) < least:
            first = now()
            computed = self.learner.compute([self.chunk])
            second = now()
            self.rule.update(self.store, GradientUpdate(self.learner.finalize(computed)))
            timings.compute.append(second - first)
            timings.update.append(now() - second)
        return timings
