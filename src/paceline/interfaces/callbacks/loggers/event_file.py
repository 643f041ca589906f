"""`tensorboard`: an event file in `tensorboard/` of the run's folder. `tensorboard --logdir runs` shows runs live."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, final

from paceline.runtime.report.tensorboard import events
from paceline.runtime.runs.record import RunRecord


@final
class EventFile:
    """An event file of its own for each life of a run, as TensorBoard's own writers make. It needs no TensorBoard."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        #: Seconds since 1970, when this life of the run had made no update.
        self._started = 0.0

    def open(self, folder: Path, record: RunRecord) -> None:
        place = folder / "tensorboard"
        place.mkdir(exist_ok=True)
        self._started = time.time()
        self._file = (place / f"events.out.tfevents.{self._started:.6f}.paceline").open("wb")
        self._file.write(events([], self._started, head=True))
        self._file.flush()

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        assert self._file is not None
        scalars = [(name, updates, value, seconds) for name, value in figures.items()]
        self._file.write(events(scalars, self._started, head=False))
        self._file.flush()

    def close(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
