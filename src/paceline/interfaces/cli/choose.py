"""The command `paceline choose`."""

from __future__ import annotations

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import saying
from paceline.interfaces.cli.output import print_json


def choose(
    job: options.JobArgument,
    cluster: options.ClusterFile = None,
    link: options.LinkText = None,
    prices: options.PriceFile = None,
    goal: options.Goal = "time",
    level: options.Level = "profiled",
    learning: options.Learning = "same",
    workers: options.MostWorkers = None,
    card: options.CardInput = None,
    batch_size: options.BatchSize = None,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    page: options.PlannerPage = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Predict every plan for JOB, rank them, and say which to use and why.

    One process may be the answer. With --level profiled a few real steps of the model are measured first; with
    calibrated the machine's card decides alone. Both give the seconds of an update with a 90% interval. The page has
    speed-up against workers, cost against time and the roofline of the model's layers.
    """
    from paceline.runtime.engines.workers.process import fork_early

    fork_early()
    from paceline.interfaces.api.planning.choose import choose as run_choice
    from paceline.interfaces.api.planning.planner_page import choice_page
    from paceline.interfaces.cli.planning import show_choice

    chosen = options.open_job(job, data_dir, job_args, batch_size=batch_size)
    again = options.again("train", job, batch_size=batch_size, data_dir=data_dir, job_args=job_args)
    choice = run_choice(
        chosen,
        cluster,
        goal,
        prices=prices,
        link=link,
        level=level,
        learning=learning,
        workers=workers,
        card=card,
        command=again,
        say=saying(quiet),
    )
    if page is not None:
        page.write_text(choice_page(chosen.name, choice), encoding="utf-8")
    if json:
        print_json(choice.as_dict())
        return
    show_choice(choice, left_out=learning == "same")
