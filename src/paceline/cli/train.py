"""paceline train"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import console, options
from paceline.cli.output import print_json


def train(
    job: options.JobOrNone = None,
    plan: Annotated[
        str | None,
        typer.Option("--plan", "-p", help="How: a plan's name and options, as in downpour:workers=4. [sequential]"),
    ] = None,
    workers: options.Workers = None,
    engine: Annotated[
        str, typer.Option(help="local: processes of this machine; virtual: a clock that jumps; mpi, under mpiexec.")
    ] = "local",
    compute: options.Compute = None,
    device: options.Device = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Stop after so many updates.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds a worker may wait for another.")] = 120.0,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(metavar="N", help="Write a checkpoint every N updates, or seconds, as in 30s. [by signal only]"),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with the run in this folder, from its newest checkpoint.")
    ] = None,
    data_dir: options.DataDir = None,
    runs: options.Runs = Path("runs"),
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train JOB by one plan, and keep what happened in a run folder.

    The parameters, the trace and the job itself are kept, so that `paceline replay` can run it again, bit for bit.
    Ctrl-C and SIGTERM have a checkpoint written and end the run, which --resume RUN goes on with; SIGUSR1 only has it
    written. With --checkpoint-every a run that was killed can go on, too. Ctrl-C twice ends it at once.
    """
    from paceline.api.train import train as run_training
    from paceline.cli.progress import ProgressDisplay
    from paceline.engines import mpi

    if mpi.ranks() > 1:
        engine = "mpi"
        console.quiet = quiet = quiet or mpi.rank() > 0
    chosen = options.open_job_or_none(
        job, data_dir, compute=compute, device=device, epochs=epochs, batch_size=batch_size, seed=seed
    )
    progress = ProgressDisplay(
        str(resume) if resume or not chosen else f"{chosen.name} by {plan or 'sequential'}", quiet
    )
    try:
        run = run_training(
            chosen,
            plan,
            workers,
            engine=engine,
            folder=runs,
            progress=progress,
            updates=updates,
            deadline=deadline,
            checkpoint_every="0" if checkpoint_every is None and engine == "local" and not resume else checkpoint_every,
            resume=resume,
        )
    finally:
        progress.close()
    summary = run.summary()
    if mpi.rank():
        return  # the first rank tells
    if json:
        print_json(summary)
        return
    from paceline.cli.tables import show_summary

    show_summary(summary)
