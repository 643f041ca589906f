"""A comparison in the terminal: what it comes to, a row per plan, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from paceline.interfaces.cli.tables import rich_table
from paceline.interfaces.cli.terminal import console, saying
from paceline.runtime.runs.comparison import ComparisonKind, ComparisonRecord
from paceline.runtime.runs.run import comparison_table
from paceline.runtime.runs.verdict import CONFIDENCE

Progress = Callable[[float, str], None]
COLOURS = {
    ComparisonKind.RECOMMENDED: "bold green",
    ComparisonKind.SINGLE: "bold",
    ComparisonKind.UNDECIDED: "bold yellow",
}


@contextmanager
def progress_shown(quiet: bool) -> Iterator[tuple[Callable[[str], None], Progress | None]]:
    """Yield what prints a line, and what moves a bar; without a terminal there is no bar, but a line for each step."""
    say = saying(quiet)
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        yield say, None
        return
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=1.0)
        yield say, lambda share, what: bar.update(task, completed=share, description=what)


def show_comparison(record: ComparisonRecord) -> None:
    """Print a comparison; the answer comes last, where it stays in sight."""
    if record.disagreement:
        console.print(f"{record.disagreement}.", style="yellow")
    console.print(rich_table(comparison_table(record)))
    console.print(_legend(record), style="dim")
    for plan in record.failed:
        console.print(f"{plan.sentence}.", style="red", soft_wrap=True)
    for note in record.notes:
        console.print(f"note: {note}", style="yellow")
    _show_steps(record)
    _show_codecs(record)
    for row in record.plans:
        if row.verdict:
            console.print(f"{row.verdict}.", style="yellow")
    if record.page:
        console.print(f"page: {record.page}", soft_wrap=True)
    if record.answer:
        console.print(record.answer.sentence, style=COLOURS[record.answer.kind], soft_wrap=True)


def _legend(record: ComparisonRecord) -> str:
    if record.link:
        return _link_legend(record)
    note = (
        ""
        if record.common_accuracy is None
        else (f" holds: time from which on the accuracy never fell below {record.common_accuracy:.1%}, which all hold.")
    )
    return (
        f"speed-up: over the best single process ({record.best_single}: {record.best_single_samples_per_second:,.0f} "
        "samples/s). of ceiling: share of the speed of as many workers that never communicate, with pieces of the same "
        f"size.{note} Medians of {record.rounds} interleaved rounds of all of these; ±: half an interval that holds "
        "the "
        f"median with {CONFIDENCE:.0%} confidence, of an accuracy from the number of test samples."
    )


def _link_legend(record: ComparisonRecord) -> str:
    return (
        f"Times are simulated: machines like this one, connected by {record.link} one way, with seconds of gradients, "
        "updates and codecs as measured here; what sockets cost a processor is left out. Accuracies are of real "
        f"gradients. speed-up: over the best single process ({record.best_single}: "
        f"{record.best_single_samples_per_second:,.0f} samples/s, measured). of ceiling: share of the speed of as many "
        f"machines that never communicate. Medians of {record.rounds} rounds."
    )


def _show_codecs(record: ComparisonRecord) -> None:
    if not record.codecs:
        return
    dense = "" if record.dense_bytes is None else f" (dense: {record.dense_bytes / 1000:,.0f} KB)"
    table = Table(title=f"what codecs do to this gradient{dense}", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("codec")
    for name in ("KB a message", "µs to write", "µs to read", "fewer bytes than a dense ring"):
        table.add_column(name, justify="right")
    for row in record.codecs:
        most = "always" if row.most_workers is None else f"up to {row.most_workers:,} workers"
        table.add_row(row.codec, f"{row.bytes / 1000:,.1f}", f"{row.encode:,.0f}", f"{row.decode:,.0f}", most)
    console.print(table)


def _show_steps(record: ComparisonRecord) -> None:
    table = Table(
        title="where the time of a worker's step goes, µs", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    table.add_column("plan")
    for name in ("step", "own compute", "update", "collectives", "waiting", "between", "KB/update"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in record.plans:
        sent = "-" if row.bytes_per_update is None else f"{row.bytes_per_update / 1000:,.0f}"
        if row.step is not None:
            parts = (row.step.compute, row.step.update, row.step.communicate, row.step.wait, row.step.other)
            table.add_row(row.short, *(f"{part:,.0f}" for part in (row.step.whole, *parts)), sent)
        elif row.unmeasured is not None:
            table.add_row(row.short, f"{row.unmeasured:,.0f}", "not measured", *["-"] * 5)
    console.print(table)
