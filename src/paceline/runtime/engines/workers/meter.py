"""The meter of a worker: about twice a second, it records the learning rate, a gradient's norm and the worker's memory.

A measurement takes as long as reading the gradient once. The next one comes so much later that all of them together
take at most `SHARE` of the worker's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns as now

import torch
from torch import Tensor

from paceline.runtime.engines.workers.process import memory
from paceline.runtime.engines.workers.worker_context import WorkerContext
from paceline.runtime.runs.trace import Kind
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.rows import numbers

INTERVAL = 500_000_000  # nanoseconds between two measurements, at least
SHARE = 0.005  # of a worker's time, at most


class Meter:
    """Measures one worker."""

    def __init__(self, context: WorkerContext, optimizer: Optimizer) -> None:
        self.context = context
        #: The optimizer whose learning rate is recorded: that of the first shard, under a plan with servers.
        self.optimizer = optimizer
        self._next = 0
        #: An update whose learning rate has yet to be recorded; -1 if there is none.
        self._stepping = -1

    def before_step(self, gradients: Sequence[Tensor | None], update: int) -> None:
        """Measure an update, if it is time; a schedule sets its learning rate later, and the next call records it."""
        if self._stepping >= 0:
            self._record_rate(self._stepping)
            self._stepping = -1
        if self._measure(partial(norm, gradients) if gradients else None, update):
            self._stepping = update

    def after_step(self, norm: Callable[[], float] | None, update: int, rate: float | None = None) -> None:
        """Measure an update that was made, if it is time.

        `norm` gives that of its gradient, and `rate` says which learning rate another optimizer had.
        """
        if self._measure(norm, update):
            self._record_rate(update, rate)

    def _measure(self, norm: Callable[[], float] | None, update: int) -> bool:
        """Record a gradient's norm, if there is one, and the memory; return whether it was time to."""
        start = now()
        if start < self._next:
            return False
        if norm is not None:
            self._record(Kind.GRADIENT_NORM, update, norm())
        self._record(Kind.MEMORY, update, float(memory("RssAnon")))
        self._next = start + max(INTERVAL, int((now() - start) / SHARE))
        return True

    def _record_rate(self, update: int, rate: float | None = None) -> None:
        learning_rate = self.optimizer.param_groups[0].get("lr") if rate is None else rate
        if learning_rate is not None:  # some optimizers of users' have none
            self._record(Kind.LEARNING_RATE, update, float(learning_rate))

    def _record(self, kind: Kind, update: int, value: float) -> None:
        at = now()
        self.context.record(kind, update, -1, -1, -1, at, at, 0, 0, 0, value)


def norm(gradients: Sequence[Tensor | None]) -> float:
    """Return the Euclidean norm of all gradients together."""
    present = [numbers(gradient) for gradient in gradients if gradient is not None]
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(present)))) if present else 0.0
