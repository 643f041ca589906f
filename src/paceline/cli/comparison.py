"""A comparison in the terminal: what it comes to, a row per plan, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from paceline.cli.console import console
from paceline.runs.comparison import ComparisonRecord, Kind, Range, Row
from paceline.runs.intervals import CONFIDENCE

COLOURS = {Kind.RECOMMENDED: "bold green", Kind.SINGLE: "bold", Kind.UNDECIDED: "bold yellow"}
METRICS = 4  # of the user's own that the table has room for; --json and the page have all


def show_comparison(found: ComparisonRecord) -> None:
    """Print a comparison; the answer comes last, where it stays in sight."""
    if found.disagreement:
        console.print(f"{found.disagreement}.", style="yellow", markup=False)
    console.print(_table(found))
    console.print(_legend(found), style="dim", markup=False)
    for note in found.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    _show_steps(found)
    for row in found.plans:
        if row.verdict:
            console.print(f"{row.verdict}.", style="yellow", markup=False)
    if found.page:
        console.print(f"page: {found.page}", markup=False, soft_wrap=True)
    if found.answer:
        console.print(found.answer.sentence, style=COLOURS[found.answer.kind], markup=False, soft_wrap=True)


class _Column(NamedTuple):
    """A column of the table, with a cell per plan."""

    head: str
    cells: list[str]


def _table(found: ComparisonRecord) -> Table:
    table = Table(title=f"{found.job}: plans side by side", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("plan", vertical="bottom", no_wrap=True)
    columns = [column for column in _columns(found) if not {*column.cells} <= {"-", "0.0"}]
    for column in columns:
        table.add_column(column.head, justify="right", vertical="bottom", no_wrap=" " not in column.head)
    for place, row in enumerate(found.plans):
        table.add_row(row.short, *(column.cells[place] for column in columns))
    return table


def _columns(found: ComparisonRecord) -> list[_Column]:
    rows, ranges = found.plans, bool(found.disagreement)
    level = "" if found.common_accuracy is None else f"{found.common_accuracy:.1%}"
    own = _own_metrics(rows)[:METRICS]
    return [
        _Column("samples/s", [f"{row.samples_per_second:,.0f}" for row in rows]),
        _Column("speed-up", [_ratio(row.speedup, row.speedup_interval, 1, ranges) for row in rows]),
        _Column("of ceiling", [_ratio(row.ceiling_share, row.ceiling_share_interval, 100, ranges) for row in rows]),
        _Column("accuracy", [_accuracy(row) for row in rows]),
        *(_Column(name, [_number(row.metrics.get(name), "{:.3f}") for row in rows]) for name in own),
        _Column(f"holds {level}", [_number(row.seconds_to_common_accuracy, "{:.2f} s") for row in rows]),
        _Column("stale", [f"{row.staleness:.1f}" for row in rows]),
        _Column("waits", [_number(row.wait_fraction, "{:.0%}") for row in rows]),
    ]  # fmt: skip


def _own_metrics(rows: Sequence[Row]) -> list[str]:
    """Names of the user's own metrics, and the test loss of a job that has no accuracy."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    hidden = {"test_accuracy"} | ({"test_loss"} if "test_accuracy" in names else set())
    return [name for name in names if name not in hidden]


def _ratio(value: float | None, interval: Range | None, scale: int, ranges: bool) -> str:
    """A figure with half its interval, or where rounds disagree the interval alone; in percent at a scale of 100."""
    if value is None:
        return "-"
    digits, unit = (0, "%") if scale == 100 else (2, "")
    low, high = interval or (value, value)
    if low == high:
        return f"{scale * value:.{digits}f}{unit}"
    if ranges:
        return f"{scale * low:.{digits}f}-{scale * high:.{digits}f}{unit}"
    return f"{scale * value:.{digits}f}{unit} ±{(high - low) / 2 / value:.0%}"


def _accuracy(row: Row) -> str:
    if row.test_accuracy is None or row.test_accuracy_interval is None:
        return _number(row.test_accuracy, "{:.1%}")
    low, high = row.test_accuracy_interval
    return f"{row.test_accuracy:.1%} ±{(high - low) * 50:.1f}"


def _legend(found: ComparisonRecord) -> str:
    held = "" if found.common_accuracy is None else (
        f" holds: time from which on the accuracy never fell below {found.common_accuracy:.1%}, which all hold."
    )  # fmt: skip
    return (
        f"speed-up: over the best single process ({found.best_single}: {found.best_single_samples_per_second:,.0f} "
        "samples/s). of ceiling: share of the speed of as many workers that never communicate, with pieces of the same "
        f"size.{held} Medians of {found.rounds} interleaved rounds of all of these; ±: half an interval that holds the "
        f"median with {CONFIDENCE:.0%} confidence, of an accuracy from the number of test samples."
    )


def _show_steps(found: ComparisonRecord) -> None:
    table = Table(
        title="where the time of a worker's step goes, µs", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    table.add_column("plan")
    for name in ("step", "own compute", "update", "collectives", "waiting", "between", "KB/update"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.plans:
        sent = "-" if row.bytes_per_update is None else f"{row.bytes_per_update / 1000:,.0f}"
        if row.step is not None:
            parts = (row.step.compute, row.step.update, row.step.communicate, row.step.wait, row.step.other)
            table.add_row(row.short, *(f"{part:,.0f}" for part in (row.step.whole, *parts)), sent)
        elif row.unmeasured is not None:
            table.add_row(row.short, f"{row.unmeasured:,.0f}", "not measured", *["-"] * 5)
    console.print(table)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
