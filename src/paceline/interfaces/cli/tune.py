"""The command `paceline tune`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from paceline.interfaces.cli import options, tune_options
from paceline.interfaces.cli.output import print_json


def tune(
    job: options.JobOrNone = None,
    space: tune_options.SpaceFile = None,
    search: tune_options.SearchOption = "asha",
    n_trials: tune_options.NumberOfTrials = None,
    executor: tune_options.ExecutorOption = "auto",
    workers: tune_options.TrialWorkers = None,
    metric: tune_options.Metric = None,
    mode: tune_options.Mode = None,
    max_t: tune_options.MaxT = None,
    steps_per_epoch: tune_options.StepsPerEpoch = 1,
    plan: tune_options.TrialPlan = None,
    seed: tune_options.TuningSeed = 0,
    seconds: tune_options.TuningSeconds = None,
    timeout: tune_options.TrialTimeout = None,
    resume: tune_options.ResumedTuning = None,
    storage: tune_options.Storage = None,
    engine: tune_options.TuningEngine = None,
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
    from paceline.runtime.engines.workers.forkserver import fork_early

    fork_early()
    from paceline.interfaces.api.tuning.ranks import engine_of
    from paceline.interfaces.api.tuning.tune import tune_from_files
    from paceline.interfaces.cli.tuning import TuningDisplay, show_tuning

    with closing(TuningDisplay(quiet)) as display:
        tuning = tune_from_files(
            job, space, search, data_dir=data_dir, job_args=job_args, n_trials=n_trials, executor=executor,
            workers=workers, metric=metric, mode=mode, max_t=max_t, steps_per_epoch=steps_per_epoch, plan=plan,
            seed=seed, seconds=seconds, timeout=timeout, resume=resume, folder=runs, progress=display,
            engine=engine or engine_of(), address=address, keys=keys, trusted_network=trusted_network, storage=storage,
        )  # fmt: skip
    if tuning.rank:
        return  # rank 0 says what was found
    if json:
        print_json(tuning.summary())
    else:
        show_tuning(tuning)
