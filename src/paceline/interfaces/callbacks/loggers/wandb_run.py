"""`wandb`: a run of Weights & Biases. With WANDB_MODE=offline it is written to the run's folder, for `wandb sync`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from paceline.interfaces.callbacks.parsing import require
from paceline.runtime.runs.record import RunRecord
from paceline.runtime.runs.schema import to_dict


@final
class WandbRun:
    """A run with the name of the run's folder and the settings of its job. The step of a figure is the update.

    project   the project that it belongs to; default: WANDB_PROJECT, or paceline
    mode      online, offline or disabled; default: WANDB_MODE, or online
    """

    def __init__(self, project: str = "", mode: str = "") -> None:
        require("wandb", "the logger wandb")
        self.project, self.mode = project, mode
        self._run: Any = None

    def open(self, folder: Path, record: RunRecord) -> None:
        import os

        import wandb

        config: dict[str, Any] = {"plan": record.plan, "workers": record.workers, **to_dict(record.job)}
        self._run = wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT") or "paceline",
            name=folder.name,
            id=folder.name,
            resume="allow",
            dir=str(folder),
            config=config,
            reinit="create_new",
            mode=self.mode or None,  # type: ignore[arg-type]
        )

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        # W&B drops a row whose step is smaller than the last one: an evaluation may come after later updates.
        self._run.log({**figures, "updates": updates, "seconds": seconds})

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
