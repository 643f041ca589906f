"""The command `paceline tune`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import print_json

# The options of `paceline tune`.

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


def tune(
    job: options.JobOrNone = None,
    space: SpaceFile = None,
    search: SearchOption = "asha",
    n_trials: NumberOfTrials = None,
    executor: ExecutorOption = "auto",
    workers: TrialWorkers = None,
    metric: Metric = None,
    mode: Mode = None,
    max_t: MaxT = None,
    steps_per_epoch: StepsPerEpoch = 1,
    plan: TrialPlan = None,
    seed: TuningSeed = 0,
    seconds: TuningSeconds = None,
    timeout: TrialTimeout = None,
    resume: ResumedTuning = None,
    storage: Storage = None,
    engine: TuningEngine = None,
    address: options.RayAddress = None,
    keys: options.Keys = None,
    trusted_network: options.TrustedNetwork = False,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    runs: options.Runs = Path("runs"),
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train JOB with many configurations and find the best one.

    JOB is a Job, or a function that makes one: `def job(trial): return paceline.Job(..., lr=trial["lr"])`. With a plain
    Job, the names of the space are settings of its optimizer (lr, momentum, ...), fields (batch_size, seed, ...) or
    dropout.

    SPACE is a TOML, JSON or Python file with a table for each name: `lr = {low = 1e-3, high = 1.0, log = true}`.

    The folder holds the journal, a page and best.py, which `paceline train` takes. A tuning that was ended or killed
    continues with --resume FOLDER, each configuration evaluated exactly once.
    """
    from paceline.runtime.engines.workers.process import fork_early

    fork_early()
    from paceline.interfaces.api.tuning.ranks import engine_of
    from paceline.interfaces.api.tuning.tune import tune_from_files
    from paceline.interfaces.cli.tuning import TuningDisplay, show_tuning
    from paceline.runtime.engines.cluster import NodeOptions

    with closing(TuningDisplay(quiet)) as display:
        tuning = tune_from_files(
            job, space, search, data_dir=data_dir, job_args=job_args, n_trials=n_trials, executor=executor,
            workers=workers, metric=metric, mode=mode, max_t=max_t, steps_per_epoch=steps_per_epoch, plan=plan,
            seed=seed, seconds=seconds, timeout=timeout, resume=resume, folder=runs, progress=display,
            engine=engine or engine_of(), nodes=NodeOptions(keys, trusted_network, address=address), storage=storage,
        )  # fmt: skip
    if tuning.rank:
        return  # rank 0 says what was found
    if json:
        print_json(tuning.summary())
    else:
        show_tuning(tuning)
