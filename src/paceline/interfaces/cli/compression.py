"""What a compression found, as a table for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from paceline.interfaces.cli.console import console

if TYPE_CHECKING:
    from paceline.compression.precision import Precisions
    from paceline.compression.result import Compression, Point


def show_compression(compression: Compression, output: Path | None) -> None:
    """Print the frontier, then the network that was chosen, or why there is none."""
    has_instructions = any(point.instructions is not None for point in compression.points)
    table = Table(
        title=f"The frontier of {compression.job}, of {len(compression.points)} points",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    columns = ("instructions", "memory") if has_instructions else ("p50 µs", "p99 µs")
    for name in ("", "width", "precision", "kernel"):
        table.add_column(name, no_wrap=True)
    for name in ("accuracy", "lost ≤", "size", *columns, "outside"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in compression.frontier:
        outside = compression.bounds.faults(point)
        table.add_row(
            "*" if point is compression.chosen else "",
            f"{point.width:g}",
            point.precision,
            point.kernel,
            f"{point.accuracy:.2%}",
            f"{point.lost.most(compression.bounds.confidence):.2f}",
            f"{point.size:,}",
            *_costs(point),
            ", ".join(outside),
            style="dim" if outside else "",
        )
    console.print(table)
    for line in sentences(compression, output):
        console.print(line, soft_wrap=True)


def most_lost(compression: Compression, point: Point) -> str:
    """What is lost on unseen data, as far as the validation data can say."""
    sure = compression.bounds.confidence
    return f", at most {max(point.lost.most(sure), 0.0):.2f} points lost ({sure:.0%} sure)"


def _costs(point: Point) -> tuple[str, str]:
    if point.latency is None:
        return f"{point.instructions or 0:,}", f"{point.memory:,}"
    return f"{point.latency.p50:.2f}", f"{point.latency.p99:.2f}"


def sentences(compression: Compression, output: Path | None) -> list[str]:
    """Return what a person wants to know, one line per subject."""
    trained = f"the trained model: {compression.trained:.2%} on validation data" + (
        f", {compression.trained_on_test:.2%} on test data" if compression.trained_on_test is not None else ""
    )
    point = compression.chosen
    if point is None:
        nearest = min(compression.frontier, key=lambda p: len(compression.bounds.faults(p)))
        over = ", ".join(compression.bounds.faults(nearest))
        return [trained, f"no point is within the bounds; the nearest one is outside in {over}. Allow more there."]
    form = f"width {point.width:g}, {point.precision}, kernel {point.kernel}"
    chosen = f"chosen: {form}: {point.accuracy:.2%} on validation data" + most_lost(compression, point)
    lines = [trained, chosen]
    if compression.on_test is not None and compression.lost is not None:
        verdict = (
            "within the bound" if compression.kept_promise else f"MORE than the bound of {compression.bounds.within:g}"
        )
        lines.append(
            f"on test data, which the search has not seen: {compression.on_test:.2%}, {0.0 - compression.lost:+.2f} "
            f"points, {verdict}"
        )
    if output is not None:
        flags = " ".join(point.file.flags)
        lines.append(f"written to {output}; try it: gcc -std=c99 {flags} {output} -o net && ./net")
    else:
        lines.append("nothing was written; -o net.c writes the C file")
    return lines


def show_precisions(precisions: Precisions) -> None:
    """Print a model in PyTorch's own precisions."""
    table = Table(title=f"{precisions.job} by PyTorch", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("")
    table.add_column("precision", no_wrap=True)
    for name in ("accuracy", "size", "p50 µs", "p99 µs", "outside"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in precisions.points:
        table.add_row(
            "*" if point == precisions.chosen else "",
            point.precision,
            f"{point.accuracy:.2%}",
            f"{point.size:,}",
            f"{point.p50_us:.1f}",
            f"{point.p99_us:.1f}",
            ", ".join(precisions.faults(point)),
        )
    console.print(table)
    for precision, why in precisions.refused.items():
        console.print(f"{precision} is not possible: {why}", soft_wrap=True)
    if precisions.chosen is None:
        console.print("no precision is within the bounds")
