"""The command `paceline check`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.output import print_json
from paceline.names import visible

if TYPE_CHECKING:
    from paceline.concurrency.check.run import Report


def check(
    paths: options.Paths = None,
    form: options.CheckFormatOption = options.CheckFormat.text,
    select: options.Select = None,
    ignore: options.Ignore = None,
    min_rank: options.MinRank = None,
    everything: options.Everything = None,
    min_confidence: options.Confidence = None,
    baseline: options.Baseline = None,
    write_baseline: options.WriteBaseline = None,
    feedback: options.Feedback = None,
    budget: options.CheckBudget = None,
    cache: options.Cached = None,
    jobs: options.Jobs = None,
    explore: options.CheckExplore = False,
    explore_seconds: options.CheckExploreSeconds = 20.0,
    explain: options.Explain = None,
    lsp: options.LanguageServer = False,
    json: options.Json = False,
) -> None:
    """Find deadlocks and races in source before it runs: locks, queues, asyncio, torch.distributed, mpi4py.

    Without --explore, the files are neither imported nor run. Each finding shows how the threads, tasks or ranks come
    to wait for each other, and what to change. Exits with 1 when something was found, 3 when the checker itself failed.
    """
    from paceline.concurrency.check.options import parse_codes, read_options
    from paceline.concurrency.check.reporting import baseline as known
    from paceline.concurrency.check.reporting.page import explain_rule
    from paceline.concurrency.check.run import check_paths

    if explain is not None:
        typer.echo(explain_rule(explain))
        return
    chosen = read_options(
        Path.cwd(),
        select=parse_codes(select),
        ignore=parse_codes(ignore),
        min_rank=None if min_rank is None else min_rank.value,
        everything=everything,
        min_confidence=min_confidence,
        baseline=baseline,
        feedback=feedback,
        budget=budget,
        cache=cache,
        jobs=jobs,
    )
    if min_confidence is not None:
        console.print("--min-confidence is deprecated: use --min-rank, or --everything in place of 0")
    if lsp:
        from paceline.concurrency.check.reporting.lsp import serve

        raise typer.Exit(serve(sys.stdin.buffer, sys.stdout.buffer, chosen))
    report = check_paths(paths or [Path()], chosen)
    if write_baseline is not None:
        known.write_baseline(write_baseline, report.findings)
        console.print(f"{len(report.findings)} findings written to {write_baseline}")
        return
    _print(report, form, json, explore_seconds if explore else None)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _print(report: Report, form: options.CheckFormat, json: bool, explore_seconds: float | None) -> None:
    """Print the findings, confirmed by running the program on request, and the summary for people."""
    from paceline.concurrency.check.reporting.formats import FORMATS
    from paceline.concurrency.check.reporting.formats.objects import as_object

    if explore_seconds is not None:
        from paceline.concurrency.explore.alarms import prove

        prove(report.findings, explore_seconds)
    if json:
        print_json(as_object(report))
    elif text := FORMATS[form.value](report):
        typer.echo(visible(text))
    console.print(report.summary())
