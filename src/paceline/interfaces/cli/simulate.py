"""The command `paceline simulate`."""

from __future__ import annotations

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console, saying
from paceline.interfaces.cli.output import print_json


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
