"""paceline check"""

from __future__ import annotations

import enum
from pathlib import Path

import typer

from paceline.cli import console


class Format(str, enum.Enum):
    text = "text"
    json = "json"
    sarif = "sarif"
    github = "github"


def check(
    paths: list[Path] = typer.Argument(None, help="Files or folders."),
    format: Format = typer.Option(Format.text, "--format", help="How to say it."),  # noqa: A002
    select: str = typer.Option(None, "--select", help="Rules to use, by the beginning of their codes: PC1,PC501."),
    ignore: str = typer.Option(None, "--ignore", help="Rules to leave out, likewise."),
    min_confidence: float = typer.Option(None, "--min-confidence", help="Say nothing below it; 0 says all. Else 0.5."),
    baseline: str = typer.Option(None, "--baseline", help="Say only what is not in this file."),
    write_baseline: Path = typer.Option(None, "--write-baseline", help="Write what is found to this file, and end well."),
    feedback: str = typer.Option(None, "--feedback", help="Marks of true and false findings, to rank by."),
    cache: bool = typer.Option(None, "--cache/--no-cache", help="Whether to remember what was found, by content."),
    explain: str = typer.Option(None, "--explain", help="Say what a rule finds, with an example, and end."),
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
    said = FORMATS[format.value](report)
    if said:
        typer.echo(said)
    console.print(report.summary(), markup=False)
    if report.findings:
        raise typer.Exit(1)
