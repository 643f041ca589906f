"""The commands of the planner: `paceline choose`, `calibrate`, `validate` and `simulate`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from paceline.interfaces.cli import options
from paceline.interfaces.cli.compare import split_plans
from paceline.interfaces.cli.terminal import console, print_json, saying


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
    from paceline.interfaces.cli.tables import show_choice

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


def calibrate(
    output: options.CardFile = None,
    seconds: options.CalibrationSeconds = 30.0,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Measure what this machine can do, and write its card.

    The card holds the seconds of operations with 1 to n busy cores, of exchanges between workers, and of Python in each
    update. `choose`, `validate` and --plan auto read it. It is a JSON file that can be carried to another machine.
    """
    from paceline.runtime.engines.workers.process import fork_early

    fork_early()
    from paceline.interfaces.api.planning.calibrate import calibrate as measure
    from paceline.interfaces.cli.tables import show_card
    from paceline.planning.planner.card import default_file

    card = measure(seconds, output, saying(quiet))
    place = Path(output or default_file())
    if json:
        print_json({**dataclasses.asdict(card), "card": str(place)})
        return
    show_card(card, place)


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
    from paceline.interfaces.cli.tables import show_validation

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


def simulate(
    job: options.JobArgument,
    plan: options.SimulatedPlan = "downpour",
    workers: options.Workers = None,
    cluster: options.ClusterFile = None,
    max_updates: options.MaxUpdates = None,
    arithmetic: options.Arithmetic = False,
    seed: options.DrawSeed = 0,
    card: options.CardInput = None,
    batch_size: options.BatchSize = None,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Simulate JOB by a plan on machines that you need not have.

    In time only, thousands of workers take seconds: speeds drawn from a distribution, stragglers, failures and repairs,
    and links that racks share come from the cluster file. With --arithmetic gradients are computed as well, so that
    learning under this staleness is predicted.
    """
    from paceline.interfaces.api.simulate import simulate as run_simulation

    simulation = run_simulation(
        options.open_job(job, data_dir, job_args, batch_size=batch_size),
        plan,
        workers,
        cluster,
        max_updates=max_updates,
        arithmetic=arithmetic,
        seed=seed,
        card=card,
        say=saying(quiet),
    )
    if json:
        print_json(simulation.as_dict())
        return
    console.print(str(simulation), soft_wrap=True)
