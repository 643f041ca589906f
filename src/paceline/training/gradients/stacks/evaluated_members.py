"""Evaluation of the members of a stack: one on each core, by generated code where that pays.

PyTorch evaluates the first of them, which shows how long it takes. If all evaluations that may follow take longer than
compiling the way forward does, the others are evaluated by generated code.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paceline.kernels import machine
from paceline.kernels.build import COMPILING
from paceline.kernels.forward import Forward
from paceline.training.data.opening import open_source
from paceline.training.gradients.evaluate import evaluate
from paceline.training.jobs.job import Job

Figures = dict[str, float]
CLOSE = 1e-5, 1e-4  # relative and absolute difference from PyTorch that rounding may make in single precision
FEW = 64  # samples on which both are compared


class Evaluation:
    """Evaluates members of one shape, whose evaluations differ in nothing but parameters and test data."""

    def __init__(self) -> None:
        #: The way forward in generated code, once it has been found to pay.
        self.forward: Forward | None = None
        self._considered = False

    def figures(self, jobs: Sequence[Job], modules: Sequence[nn.Module], rounds: int) -> list[Figures | Exception]:
        """Return each member's figures, or what its evaluation raised. `rounds` more evaluations may follow."""
        if not all(map(_apart, jobs)):  # a metric's object may be shared
            return [self._one(job, module) for job, module in zip(jobs, modules, strict=True)]
        with (
            one_thread(),
            ThreadPoolExecutor(machine.cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            outcomes: list[Figures | Exception] = []
            if not self._considered:
                begin = time.perf_counter()
                outcomes.append(self._one(jobs[0], modules[0]))
                remaining = (time.perf_counter() - begin) * (len(jobs) * (rounds + 1) - 1) / machine.cores()
                self._consider_compiling(jobs[0], modules[0], remaining)
            outcomes += pool.map(self._one, jobs[len(outcomes) :], modules[len(outcomes) :])
        return outcomes

    def _one(self, job: Job, module: nn.Module) -> Figures | Exception:
        assert job.test is not None
        by = Generated(self.forward, module) if self.forward is not None else module
        try:
            return evaluate(job, by, open_source(job.test, job.seed, "test"))
        except Exception as error:  # of the user's own: this member fails, and no other
            return error

    def _consider_compiling(self, job: Job, module: nn.Module, remaining: float) -> None:
        """Compile the way forward if it pays and is the module's own."""
        self._considered = True
        if remaining < COMPILING:
            return
        assert job.loss is not None
        assert job.test is not None
        try:
            source = open_source(job.test, job.seed, "test")
            x = source.batch(torch.arange(min(FEW, len(source))), 0)[0]
            forward = Forward(module, job.loss, x)
            if close(forward.scores(module, x), module.eval()(x)):
                self.forward = forward
        except Exception:  # PyTorch goes on, and fails where the user's own code does
            pass
        finally:
            module.train()


class Generated(nn.Module):
    """A module whose way forward is computed by generated code."""

    def __init__(self, way: Forward, module: nn.Module) -> None:
        super().__init__()
        self.way, self.of = way, [module]  # not as a part, whose mode would be changed

    def forward(self, x: Tensor) -> Tensor:
        return self.way.scores(self.of[0], x)


def close(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two results differ by rounding alone."""
    relative, absolute = CLOSE
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=relative, atol=absolute)


def _apart(job: Job) -> bool:
    """Whether an evaluation of this job calls nothing of the user's that others may be calling at the same time."""
    overrides = (job.evaluate, job.step, job.loss_denominator, job.batch_transform)
    return not job.metrics and all(each is None for each in overrides) and _from_torch(job.loss)


def _from_torch(loss: object) -> bool:
    return str(getattr(loss, "__module__", "")).startswith("torch.")


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which PyTorch computes in one thread, since there are others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
