"""The settings of an optimizer in updates that have yet to be made, which generated code needs ahead.

A schedule gives the settings of an update by the number of updates before it. At a server, workers find out that number
only when they have a shard's lock, so a copy of the optimizer whose schedule runs ahead knows the next ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile

import numpy as np

from paceline.kernels.served_steps import ServedStep
from paceline.training.gradients.native_step import Settings
from paceline.training.parameters.optimizers import LRSchedule, Optimizer, ScheduleStepper, optimizer_over


class ScheduledSettings:
    """Settings by the number of updates that came before, asked for in this order."""

    def __init__(
        self, optimizer: Optimizer, schedule: LRSchedule | None, step: ServedStep, constants: Sequence[float]
    ) -> None:
        optimizer_copy = optimizer_over(optimizer, {p: p for group in optimizer.param_groups for p in group["params"]})
        self._settings, self._schedule = (
            Settings(optimizer_copy, step, constants),
            ScheduleStepper(optimizer_copy, schedule),
        )
        #: Of the updates from `_first` on; None where generated code has no text for them.
        self._rows: deque[np.ndarray | None] = deque()
        self._first = 0

    @property
    def fixed(self) -> bool:
        """Whether all updates have the same settings."""
        return self._schedule.scheduler is None

    def after(self, updates: range) -> np.ndarray:
        """Return the settings after so many updates each, up to the first that generated code has no text for."""
        while self._rows and self._first < updates.start:
            self._rows.popleft()
            self._first += 1
        if not self._rows:
            self._first = updates.start
        for number in range(self._first + len(self._rows), updates.stop):
            self._schedule.advance(number)
            self._rows.append(self._settings.rows())
        rows = islice(self._rows, len(updates))
        return np.array([row for row in takewhile(lambda row: row is not None, rows) if row is not None])
