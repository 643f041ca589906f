"""`csv`: `metrics.csv` in the run's folder, a row per figure."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, final

from paceline.runtime.report.formatting import cell
from paceline.runtime.runs.record import RunRecord


@final
class CsvFile:
    """Rows of updates, seconds, the name of a figure and its value."""

    def __init__(self) -> None:
        self._file: IO[str] | None = None

    def open(self, folder: Path, record: RunRecord) -> None:
        path = folder / "metrics.csv"
        begun = path.exists()
        self._file = path.open("a", encoding="utf-8", newline="")
        if not begun:
            self._rows([("updates", "seconds", "name", "value")])

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        self._rows([(updates, f"{seconds:.3f}", cell(name), value) for name, value in figures.items()])

    def close(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()

    def _rows(self, rows: Sequence[tuple[object, ...]]) -> None:
        assert self._file is not None
        csv.writer(self._file).writerows(rows)
        self._file.flush()
