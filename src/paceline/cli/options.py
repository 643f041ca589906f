"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.jobs.job import Job

JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="A Python file with a module-level `job` (or file.py:name), or a built-in job."),
]
JobOrNone = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="[JOB]", help="A Python file with a module-level `job`, or a built-in job."),
]
PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan's name and options, as in hierarchical:workers=6,groups=3")
]
Workers = Annotated[Optional[int], typer.Option("--workers", "-w", min=1, help="How many workers.")]  # noqa: UP045
Compute = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="How a gradient is made: autograd (PyTorch), or fused (machine code; small networks)."),
]
Device = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="Where gradients are computed: auto, cpu, cuda, cuda:1, instead of the job's."),
]
Epochs = Annotated[Optional[int], typer.Option(min=1, help="Passes over the data, instead of the job's.")]  # noqa: UP045
BatchSize = Annotated[Optional[int], typer.Option(min=1, help="Samples per batch, instead of the job's.")]  # noqa: UP045
Seed = Annotated[Optional[int], typer.Option(help="The seed of all chance, instead of the job's.")]  # noqa: UP045
DataDir = Annotated[Optional[str], typer.Option(help="Where MNIST-format IDX files lie.")]  # noqa: UP045
Runs = Annotated[Path, typer.Option(help="Where run folders go.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing while it goes on; only how it ended.")]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]


def writable(param: typer.CallbackParam, file: Path | None) -> Path | None:
    """A file that an option names and that is to be written in the end: told before the work begins."""
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        why = "is a folder" if file.is_dir() else f"would lie in {file.parent}, which is not there or closed to you"
        raise UsageError(f"{param.opts[0]} {file}: it {why}; name a file")
    return file


def open_job_or_none(where: str | None, data_dir: str | None, **changes: Any) -> Job | None:
    """Where a run goes on it has its job; but what would change one is not passed over."""
    if where is not None:
        return open_job(where, data_dir, **changes)
    given = [name for name, value in {**changes, "data_dir": data_dir}.items() if value is not None]
    if given:
        raise UsageError(f"--{given[0].replace('_', '-')} is about a job, and none is given; name the JOB, too")
    return None


def open_job(where: str, data_dir: str | None, **changes: Any) -> Job:
    """The job, with the settings given on the command line."""
    from paceline.jobs.built_ins import BUILT_IN, built_in
    from paceline.jobs.loading import load_job

    job = built_in(where, data_dir) if where in BUILT_IN else load_job(where)
    given = {key: value for key, value in changes.items() if value is not None}
    return job.with_(**given) if given else job


def numbers(given: str, word: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    parts = given.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"{word}={given!r}: give whole numbers with commas between, as in 1,2,4")
    return tuple(int(part) for part in parts)
