"""Results as text and tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from paceline.cli.console import console

if TYPE_CHECKING:
    from paceline.api.compare import Comparison
    from paceline.api.compare_scripts import ScriptComparison
    from paceline.runs.comparison import Row


def show_summary(summary: dict[str, Any]) -> None:
    """Print a finished run, one line per subject."""
    stale, workers = summary["staleness"], summary["workers"]
    updates, rate = summary["updates"], summary["samples_per_second"]
    accuracy, loss = _number(summary.get("test_accuracy"), "{:.2%}"), _number(summary.get("test_loss"), "{:.4f}")
    lines = {
        "plan": f"{summary['plan']} on {workers} worker{'s' * (workers > 1)}, engine {summary['engine']}",
        "speed": f"{rate:,.0f} samples/s: {updates} updates in {summary['seconds']:.2f} s",
        "train loss": _number(summary["train_loss"], "{:.4f}"),
        "test": f"accuracy {accuracy}, loss {loss}",
        "staleness": f"mean {stale['mean']:.2f}, 95% {stale['p95']:.0f}, max {stale['max']}",
        "waiting": f"{summary['wait_fraction']:.1%} of the workers' time; {_bytes(summary['bytes_sent'])} sent",
        "parameters": summary["parameters_sha256"][:16],
        "run": str(summary["run"]),
    }
    if summary["stragglers"]:
        slow = (f"worker {w} computes at {of:.0%} of the others' speed" for w, of in summary["stragglers"].items())
        lines["straggler"] = "; ".join(slow)
    if summary["not_finite"]:
        lines["not finite"] = f"the loss of {summary['not_finite']} gradients"
    if summary["deaths"]:
        lines["died"] = f"workers {summary['deaths']}; the others finished the training"
    for subject, line in lines.items():
        console.print(f"{subject:>11}  {line}", markup=False, soft_wrap=True)


def show_comparison(found: Comparison) -> None:
    """Print a comparison: a row per plan, then where the time of a step goes, then verdicts."""
    table = Table(title=f"{found.job}: plans side by side", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("plan")
    for name in ("samples/s", "±", "speed", "effic.", "ceil.", "acc.", "common", "stale", "KB/up", "wait"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(*_cells(row))
    console.print(table)
    common = (
        ""
        if found.common_accuracy is None
        else f" common: time to {found.common_accuracy:.1%} accuracy, which all reached."
    )
    console.print(
        f"speed: over the best single process ({found.best_single}: {found.best_single_samples_per_second:,.0f} "
        f"samples/s); effic.: that per worker. ceil.: share of the speed of as many workers that never communicate, "
        f"with pieces of the same size.{common} Medians of {found.rounds} alternating rounds, ± half the range.",
        style="dim",
        markup=False,
    )
    for note in found.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    _show_steps(found)
    for row in found.rows:
        if row.verdict:
            console.print(f"{row.verdict}.", style="yellow", markup=False)


def _show_steps(found: Comparison) -> None:
    table = Table(
        title="where the time of a worker's step goes, µs", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    table.add_column("plan")
    for name in ("step", "own compute", "update", "collectives", "waiting", "between"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        if row.step is not None:
            parts = (row.step.compute, row.step.update, row.step.communicate, row.step.wait, row.step.other)
            table.add_row(_short(row), *(f"{part:,.0f}" for part in (row.step.whole, *parts)))
    console.print(table)


def show_scripts(found: ScriptComparison) -> None:
    """Print a script's steps on gloo and on Paceline's backend."""
    table = Table(title=f"{found.script}, unchanged", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("")
    for name in ("ms/step", "±", "batches/s", "speed", "whole", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        half = (row.spread[1] - row.spread[0]) / 2
        table.add_row(
            row.name, f"{row.milliseconds_per_step:.2f}", f"{half:.2f}", f"{row.batches_per_second:,.0f}",
            f"{row.speedup:.2f}x", f"{row.seconds:.1f} s", str(row.steps),
        )  # fmt: skip
    console.print(table)
    same = {None: "", 0.0: " Both ended with the same parameters, bit for bit."}.get(
        found.difference, f" The parameters of the two differ by at most {found.difference}."
    )
    console.print(
        f"On gloo a step takes {found.over_gloo:.2f} times as long as on paceline.{same} speed: batches per second of "
        f"all processes, relative to the best without Paceline. Medians of {found.rounds} interleaved rounds, ± half "
        "the range.",
        style="dim",
        markup=False,
    )
    for note in found.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    single = [row for row in found.rows if row.processes == 1]
    ours = found.rows[-1]
    if single and ours.batches_per_second < max(row.batches_per_second for row in single):
        console.print("This script is faster as one process.", style="yellow", markup=False)


def _cells(row: Row) -> list[str]:
    half = (row.spread[1] - row.spread[0]) / 2
    return [
        _short(row),
        f"{row.samples_per_second:,.0f}",
        f"{half / row.samples_per_second:.0%}",
        f"{row.speedup:.2f}",
        f"{row.efficiency:.0%}",
        _number(row.ceiling_share, "{:.0%}"),
        _number(row.test_accuracy, "{:.1%}"),
        _number(row.seconds_to_common_accuracy, "{:.2f} s"),
        f"{row.staleness:.1f}",
        f"{row.bytes_per_update / 1000:,.0f}",
        f"{row.wait_fraction:.0%}",
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _short(row: Row) -> str:
    """The plan in the short form of a table: `downpour x2 shards=2`."""
    name, _, options = row.plan.partition(":")
    rest = [option for option in options.split(",") if option and not option.startswith("workers=")]
    return f"{name} x{row.workers}{''.join(' ' + option for option in rest)}" if row.workers > 1 else row.plan
