"""The commands `paceline check` and `paceline explain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import console, print_json
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
    from paceline.concurrency.check.reporting import findings
    from paceline.concurrency.check.rules import explain_rule
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
        findings.write_baseline(write_baseline, report.findings)
        console.print(f"{len(report.findings)} findings written to {write_baseline}")
        return
    _print(report, form, json, explore_seconds if explore else None)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _print(report: Report, form: options.CheckFormat, json: bool, explore_seconds: float | None) -> None:
    """Print the findings, confirmed by running the program on request, and the summary for people."""
    from paceline.concurrency.check.reporting.formats import FORMATS, as_object

    if explore_seconds is not None:
        from paceline.concurrency.explore.alarms import prove

        prove(report.findings, explore_seconds)
    if json:
        print_json(as_object(report))
    elif text := FORMATS[form.value](report):
        typer.echo(visible(text))
    console.print(report.summary())
    if not report.findings and not report.failed:
        console.print(
            "next     paceline explore FILE runs it in many orders; paceline watch -- COMMAND says why it hangs",
            style="dim",
            soft_wrap=True,
        )


NAME_HELP = "A rule of `paceline check`, as PC404 or lock-order; or an error, by its first word, as WorkerFailed."


def explain(name: Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP)]) -> None:
    """Explain a finding or an error: what it means, why, and what to do."""
    from paceline.concurrency.check.rules import RULES, explain_rule
    from paceline.errors.remedies import explain_error

    rules = {word.lower() for rule in RULES.values() for word in (rule.code, rule.name)}
    looks_like_rule = name.strip().lower() in rules or name.strip()[:2].upper() == "PC"
    typer.echo(explain_rule(name) if looks_like_rule else explain_error(name))
