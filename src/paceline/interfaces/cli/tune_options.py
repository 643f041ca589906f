"""The options of `paceline tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SpaceFile = Annotated[
    Path | None,
    typer.Option(
        "--space",
        metavar="FILE",
        help="The search space: a .toml, .json or .py file.",
        show_default="what the job file's function suggests",
    ),
]
SearchOption = Annotated[
    str,
    typer.Option(
        help="grid, random, sobol, asha, successive_halving, hyperband, median_stopping, pbt, or a sampler of Optuna "
        "(tpe, gp, cmaes, nsgaii, qmc); with options, as in asha:max_t=9,reduction_factor=3."
    ),
]
NumberOfTrials = Annotated[
    int | None, typer.Option("--n-trials", min=1, help="Number of trials.", show_default="all of a grid, otherwise 32")
]
ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor", help="What runs trials: processes, stacked, distributed (each by --plan), here, or auto."
    ),
]
TrialWorkers = Annotated[
    int | None, typer.Option("--workers", "-w", min=1, help="Worker processes.", show_default="one for each core")
]
Metric = Annotated[
    str | None,
    typer.Option(help="test_loss, test_accuracy, train_loss or a metric of the job's own.", show_default="test_loss"),
]
Mode = Annotated[
    str | None,
    typer.Option(metavar="min|max", help="Minimize or maximize.", show_default="by the metric"),
]
MaxT = Annotated[
    int | None, typer.Option(min=1, help="Number of steps of a complete trial.", show_default="those of JOB")
]
StepsPerEpoch = Annotated[int, typer.Option(min=1, help="Steps in an epoch: how often a trial is evaluated.")]
TrialPlan = Annotated[
    str | None, typer.Option("--plan", "-p", help="With --executor distributed: the plan by which each is trained.")
]
TuningSeed = Annotated[int, typer.Option(min=0, help="Random seed of the search.")]
TuningSeconds = Annotated[float | None, typer.Option(help="Start no further trials after this many seconds.")]
TrialTimeout = Annotated[
    float | None,
    typer.Option(
        help="Seconds without a report after which the process of a trial is ended.",
        show_default="20 times the longest silence, at least 120",
    ),
]
ResumedTuning = Annotated[
    Path | None, typer.Option("--resume", metavar="FOLDER", help="Continue the tuning in this folder.")
]
Storage = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A storage of Optuna to read and write, as sqlite:///tuning.db."),
]
TuningEngine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        "-e",
        help="local, cluster (ranks of torchrun, srun or mpiexec, or tasks of an array of Slurm), or ray.",
        show_default="cluster where a launcher started several ranks, otherwise local",
    ),
]
