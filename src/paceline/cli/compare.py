"""paceline compare"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import console, options
from paceline.cli.output import print_json


def compare(
    job: options.JobArgument,
    plans: Annotated[str, typer.Option(help="Plan names, with commas between.")] = "sequential,ddp,ring,downpour",
    workers: options.Workers = 2,
    seconds: Annotated[float | None, typer.Option(help="Timed seconds per plan, in five rounds in turn.")] = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    data_dir: options.DataDir = None,
    runs: options.Runs = Path("runs"),
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train JOB by several plans and show them side by side.

    Each plan is set against the best single process, and against its ceiling: as many workers that never meet.
    """
    from paceline.cli.tables import show_comparison
    from paceline.comparison import compare as run_comparison

    chosen = options.open_job(job, data_dir, epochs=epochs, batch_size=batch_size, seed=seed)
    found = run_comparison(
        chosen,
        split_plans(plans),
        workers,
        seconds=seconds,
        folder=runs,
        say=lambda line: None if quiet else console.print(line, style="dim", markup=False, soft_wrap=True),
    )
    if json:
        print_json(found.as_dict())
        return
    show_comparison(found)
    if found.page is not None:
        console.print(f"page: {found.page}", markup=False, soft_wrap=True)


def split_plans(text: str) -> list[str]:
    """`ring,downpour:workers=2,shards=3` is two plans: a word with `=` belongs to the plan before it."""
    plans: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if "=" in word and ":" not in word and plans:
            plans[-1] += "," + word
        else:
            plans.append(word)
    return plans
