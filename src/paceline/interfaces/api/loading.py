"""`load_run` opens a recorded run in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paceline.errors import RunFolderError
from paceline.runtime.engines.job_file import load_job_file
from paceline.runtime.runs.record import read_record
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Trace
from paceline.training.jobs.job import Job


def load_run(path: str | Path, job: Job | None = None, data: Any = None) -> Run:
    """Open the folder of a finished run, as `train` returned it.

    Reading the folder's `job.pickle` runs code of its author; give `job=` for a run from elsewhere.

    Example:
        >>> run = paceline.load_run("runs/20261129-101500-digits-ring")
        >>> run.model, run.history[-1]

    Args:
        path: The run's folder.
        job: The job, where the folder could not keep it.
        data: The data, where the folder could not keep it.
    """
    path = Path(path)
    record = read_record(path)  # reports what is wrong with a folder that is not a run's
    job = job or load_job_file(path, data, resumable=True)
    file = path / "model.pt"
    if not file.exists():
        raise RunFolderError(
            f"{path} has no model.pt: its training is not finished; resume it with paceline train --resume"
        )
    module = job.make_model()
    module.load_state_dict(torch.load(file, weights_only=True))
    trace = path / "trace.arrow"
    return Run(path, Trace.open(trace) if trace.exists() else Trace.of([]), record, module, job)
