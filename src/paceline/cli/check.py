"""paceline check"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from paceline.cli import console, options


class Format(str, enum.Enum):
    text = "text"
    json = "json"
    sarif = "sarif"
    github = "github"


Paths = Annotated[Optional[list[Path]], typer.Argument(help="Files or folders; else the folder one is in.")]  # noqa: UP045
Said = Annotated[Format, typer.Option("--format", help="How to say it.")]
Select = Annotated[Optional[str], typer.Option(help="Rules to use, by the beginning of their codes: PC1,PC501.")]  # noqa: UP045
Ignore = Annotated[Optional[str], typer.Option(help="Rules to leave out, likewise.")]  # noqa: UP045
Confidence = Annotated[Optional[float], typer.Option(help="Say nothing below it; 0 says all. Else 0.5.")]  # noqa: UP045
Baseline = Annotated[Optional[str], typer.Option(help="Say only what is not in this file.")]  # noqa: UP045
Write = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(callback=options.writable, help="Write what is found to this baseline, and end well."),
]
Feedback = Annotated[Optional[str], typer.Option(help="Marks of true and false findings, to rank by.")]  # noqa: UP045
Cached = Annotated[Optional[bool], typer.Option("--cache/--no-cache", help="Remember what was found, by content.")]  # noqa: UP045
Explain = Annotated[Optional[str], typer.Option(help="Say what a rule finds, with an example, and end.")]  # noqa: UP045


def check(
    paths: Paths = None,
    said: Said = Format.text,
    select: Select = None,
    ignore: Ignore = None,
    min_confidence: Confidence = None,
    baseline: Baseline = None,
    write_baseline: Write = None,
    feedback: Feedback = None,
    cache: Cached = None,
    explain: Explain = None,
) -> None:
    """Find deadlocks and races in PATHS before they run: locks, queues, asyncio, torch.distributed, mpi4py.

    Nothing that is checked is imported or run. Each finding tells who does what, in which lines, so that they wait for
    ever, and what to change. Ends with 0 when nothing was found, 1 when something was.
    """
    from paceline.check.baseline import write_baseline as write
    from paceline.check.formats import FORMATS
    from paceline.check.options import codes, read_options
    from paceline.check.page import explained
    from paceline.check.run import check_paths

    if explain is not None:
        typer.echo(explained(explain))
        return
    options = read_options(
        Path.cwd(),
        select=codes(select),
        ignore=codes(ignore),
        min_confidence=min_confidence,
        baseline=baseline,
        feedback=feedback,
        cache=cache,
    )
    report = check_paths(paths or [Path()], options)
    if write_baseline is not None:
        write(write_baseline, report.findings)
        console.print(f"{len(report.findings)} findings written to {write_baseline}", markup=False)
        return
    if text := FORMATS[said.value](report):
        typer.echo(text)
    console.print(report.summary(), markup=False)
    if report.findings:
        raise typer.Exit(1)
