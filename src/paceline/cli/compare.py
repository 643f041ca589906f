"""paceline compare"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from paceline.cli import console, options
from paceline.cli.output import print_json
from paceline.errors import UsageError


def compare(
    job: options.JobOrNone = None,
    script: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Instead of JOB: a script that uses torch.distributed, with its arguments."),
    ] = None,
    plans: Annotated[str, typer.Option(help="Plan names, with commas between.")] = "sequential,ddp,ring,downpour",
    workers: options.Workers = 2,
    device: options.Device = None,
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

    Each plan is set against the best single process, and against its ceiling: as many workers that never communicate.

    With --script 'train.py --its-own options' a script of yours is run as it is, by torchrun, under gloo and under
    Paceline's backend in turn; of the other options it heeds --workers, --quiet and --json.
    """
    if (job is None) == (script is None):
        raise UsageError("give a JOB, or --script 'train.py ...' for a script that uses torch.distributed")
    if script is not None:
        compare_scripts(script, workers or 2, quiet, json)
        return
    assert job is not None
    from paceline.api.compare import compare as run_comparison
    from paceline.cli.tables import show_comparison

    chosen = options.open_job(job, data_dir, device=device, epochs=epochs, batch_size=batch_size, seed=seed)
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


def compare_scripts(script: str, workers: int, quiet: bool, json: bool) -> None:
    from paceline.api.compare_scripts import compare_script
    from paceline.cli.tables import show_scripts

    found = compare_script(
        script, workers, say=lambda line: None if quiet else console.print(line, style="dim", markup=False)
    )
    if json:
        print_json(found.as_dict())
    else:
        show_scripts(found)


def split_plans(text: str) -> list[str]:
    """`ring,downpour:workers=2,shards=3` is two plans: a word with `=` belongs to the plan before it."""
    plans: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if "=" in word and ":" not in word and plans:
            plans[-1] += "," + word
        else:
            plans.append(word)
    return plans
