"""The command `paceline verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from paceline.errors import UsageError
from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.output import print_json

if TYPE_CHECKING:
    from paceline.interfaces.api.comparing.first_step import StepVerification
    from paceline.runtime.engines.replay.verify import Verification


def verify(
    run: options.FirstRun = None,
    other: options.RunOrJob = None,
    script: options.ScriptToVerify = None,
    workers: options.ScriptWorkers = 2,
    plan: options.PlanOfJob = None,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    json: options.Json = False,
) -> None:
    """Compare a recorded run with another one, or with a job, bit by bit.

    Both are computed again side by side, and the first update, tensor and number at which they differ is named. With
    --script the first step of a script of torch.distributed is compared instead: the processes with each other, and
    with what one process would do with all of their samples. Exit code 0: the same; 1: they differ.
    """
    if (script is None) == (run is None or other is None) or (script is not None and run is not None):
        raise UsageError("give two runs, or a run and a job, or --script 'train.py'")
    found: Verification | StepVerification
    if script is not None:
        from paceline.interfaces.api.comparing.first_step import verify_script

        found = verify_script(script, workers)
    else:
        found = _compared(run, other, plan, data_dir, job_args)
    if json:
        print_json(found.as_dict())
    else:
        console.print(str(found), style="green" if found.same else "red", soft_wrap=True, highlight=False, markup=False)
    if not found.same:
        raise typer.Exit(1)


def _compared(
    run: Path | None, other: str | None, plan: str | None, data_dir: str | None, job_args: str | None
) -> Verification:
    from paceline.runtime.engines.replay.verify import verify as compare
    from paceline.training.jobs.loading import load_job

    assert run is not None
    assert other is not None
    return compare(run, Path(other) if Path(other).is_dir() else load_job(other, data_dir, job_args), plan=plan)
