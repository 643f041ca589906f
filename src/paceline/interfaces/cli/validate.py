"""The command `paceline validate`."""

from __future__ import annotations

from paceline.interfaces.cli import options
from paceline.interfaces.cli.compare import split_plans
from paceline.interfaces.cli.console import saying
from paceline.interfaces.cli.output import print_json


def validate(
    job: options.JobArgument,
    plans: options.CheckedPlans = None,
    level: options.Level = "profiled",
    learning: options.Learning = "any",
    workers: options.MostWorkers = None,
    rounds: options.Rounds = 6,
    seconds: options.RoundSeconds = 0.4,
    seed: options.DrawSeed = 0,
    card: options.CardInput = None,
    batch_size: options.BatchSize = None,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    page: options.PlannerPage = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train JOB for a few steps by the best plans and two random ones: predicted against measured.

    Prints the error of each prediction, their bias, rank correlation and coverage, the regret of the choice, and the
    noise floor: the difference between two measurements of the same plan. The checks are kept beside the machine's
    card, and intervals of later predictions follow them. The page also has the predicted and the measured timeline of
    the fastest plans, one above the other.
    """
    from paceline.runtime.engines.workers.process import fork_early

    fork_early()
    from paceline.interfaces.api.planning.validate import validate as run_validation
    from paceline.interfaces.cli.planning import show_validation

    chosen = options.open_job(job, data_dir, job_args, batch_size=batch_size)
    validation = run_validation(
        chosen,
        split_plans(plans or ""),
        level=level,
        learning=learning,
        workers=workers,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        card=card,
        page=page,
        say=saying(quiet),
    )
    if json:
        print_json(validation.as_dict())
        return
    show_validation(validation)
