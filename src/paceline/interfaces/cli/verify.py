"""The command `paceline verify`."""

from __future__ import annotations

from pathlib import Path

import typer

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.output import print_json


def verify(
    run: options.RunArgument,
    other: options.RunOrJob,
    plan: options.PlanOfJob = None,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    json: options.Json = False,
) -> None:
    """Compare a recorded run with another one, or with a job, bit by bit.

    Both are computed again side by side, and the first update, tensor and number at which they differ is named. Exit
    code 0: the same bits; 1: they differ.
    """
    from paceline.runtime.engines.replay.verify import verify as compare
    from paceline.training.jobs.loading import load_job

    second = Path(other) if Path(other).is_dir() else load_job(other, data_dir, job_args)
    found = compare(run, second, plan=plan)
    if json:
        print_json(found.as_dict())
    else:
        console.print(str(found), style="green" if found.same else "red", soft_wrap=True, highlight=False, markup=False)
    if not found.same:
        raise typer.Exit(1)
