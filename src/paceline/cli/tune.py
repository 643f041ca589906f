"""The command `paceline tune`."""

from __future__ import annotations

from pathlib import Path

from paceline.cli import options
from paceline.cli.output import print_json


def tune(
    job: options.JobOrNone = None,
    space: options.SpaceFile = None,
    search: options.SearchOption = "asha",
    trials: options.TrialsOption = "auto",
    workers: options.TrialWorkers = None,
    budget: options.Budget = None,
    metric: options.Metric = None,
    mode: options.Mode = None,
    max_t: options.MaxT = None,
    steps_per_epoch: options.StepsPerEpoch = 1,
    plan: options.TrialPlan = None,
    seed: options.TuningSeed = 0,
    seconds: options.TuningSeconds = None,
    timeout: options.TrialTimeout = None,
    resume: options.ResumedTuning = None,
    data_dir: options.DataDir = None,
    runs: options.Runs = Path("runs"),
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train JOB with many configurations and find the best one.

    JOB is a Job, or a function that makes one: `def job(trial): return pl.Job(..., lr=trial["lr"])`. Of a plain Job the
    names of the space are settings of its optimizer (lr, momentum, ...), fields (batch_size, seed, ...) or dropout.

    SPACE is a TOML, JSON or Python file with a table for each name: `lr = {low = 1e-3, high = 1.0, log = true}`.

    The folder holds the journal, a page and best.py, which `paceline train` takes. A tuning that was ended or killed
    goes on with --resume FOLDER, each configuration evaluated exactly once.
    """
    from paceline.api.tune import tune_from_files
    from paceline.cli.tuning import TuningDisplay, show_tuning

    display = TuningDisplay(quiet)
    try:
        found = tune_from_files(
            job, space, search, data_dir=data_dir, trials=trials, workers=workers, budget=budget, metric=metric,
            mode=mode, max_t=max_t, steps_per_epoch=steps_per_epoch, plan=plan, seed=seed, seconds=seconds,
            timeout=timeout, resume=resume, folder=runs, progress=display,
        )  # fmt: skip
    finally:
        display.close()
    if json:
        print_json(found.summary())
    else:
        show_tuning(found)
