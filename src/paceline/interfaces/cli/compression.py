"""What a compression found, as a table for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from paceline.interfaces.cli.console import console

if TYPE_CHECKING:
    from paceline.compression.points import Point
    from paceline.compression.precision import Precisions
    from paceline.compression.result import Compression


def show_compression(found: Compression, output: Path | None) -> None:
    """Print the frontier, then the network that was chosen, or why there is none."""
    there = any(point.instructions is not None for point in found.points)
    table = Table(
        title=f"The frontier of {found.job}, of {len(found.points)} points", title_justify="left", box=None,
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    columns = ("instructions", "memory") if there else ("p50 µs", "p99 µs")
    for name in ("", "width", "precision", "kernel"):
        table.add_column(name, no_wrap=True)
    for name in ("accuracy", "lost ≤", "size", *columns, "outside"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in found.frontier:
        outside = found.bounds.faults(point)
        table.add_row(
            "*" if point is found.chosen else "", f"{point.width:g}", point.precision, point.kernel,
            f"{point.accuracy:.2%}", f"{point.lost.most(found.bounds.confidence):.2f}", f"{point.size:,}",
            *_costs(point), ", ".join(outside),
            style="dim" if outside else "",
        )  # fmt: skip
    console.print(table)
    for line in sentences(found, output):
        console.print(line, soft_wrap=True)


def most_lost(found: Compression, point: Point) -> str:
    """What is lost on unseen data, as far as the validation data can say."""
    sure = found.bounds.confidence
    return f", at most {max(point.lost.most(sure), 0.0):.2f} points lost ({sure:.0%} sure)"


def _costs(point: Point) -> tuple[str, str]:
    if point.latency is None:
        return f"{point.instructions or 0:,}", f"{point.memory:,}"
    return f"{point.latency.p50:.2f}", f"{point.latency.p99:.2f}"


def sentences(found: Compression, output: Path | None) -> list[str]:
    """Return what a person wants to know, one line per subject."""
    trained = f"the trained model: {found.trained:.2%} on validation data" + (
        f", {found.trained_on_test:.2%} on test data" if found.trained_on_test is not None else ""
    )
    point = found.chosen
    if point is None:
        nearest = min(found.frontier, key=lambda p: len(found.bounds.faults(p)))
        over = ", ".join(found.bounds.faults(nearest))
        return [trained, f"no point is within the bounds; the nearest one is outside in {over}. Allow more there."]
    form = f"width {point.width:g}, {point.precision}, kernel {point.kernel}"
    chosen = f"chosen: {form}: {point.accuracy:.2%} on validation data" + most_lost(found, point)
    lines = [trained, chosen]
    if found.on_test is not None and found.lost is not None:
        kept = "within the bound" if found.kept_promise else f"MORE than the bound of {found.bounds.within:g}"
        lines.append(
            f"on test data, which the search has not seen: {found.on_test:.2%}, {0.0 - found.lost:+.2f} points, {kept}"
        )
    if output is not None:
        flags = " ".join(point.file.flags)
        lines.append(f"written to {output}; try it: gcc -std=c99 {flags} {output} -o net && ./net")
    else:
        lines.append("nothing was written; -o net.c writes the C file")
    return lines


def show_precisions(found: Precisions) -> None:
    """Print a model in PyTorch's own precisions."""
    table = Table(title=f"{found.job} by PyTorch", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("")
    table.add_column("precision", no_wrap=True)
    for name in ("accuracy", "size", "p50 µs", "p99 µs", "outside"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in found.points:
        table.add_row(
            "*" if point == found.chosen else "", point.precision, f"{point.accuracy:.2%}", f"{point.size:,}",
            f"{point.p50_us:.1f}", f"{point.p99_us:.1f}", ", ".join(found.faults(point)),
        )  # fmt: skip
    console.print(table)
    for precision, why in found.refused.items():
        console.print(f"{precision} is not possible: {why}", soft_wrap=True)
    if found.chosen is None:
        console.print("no precision is within the bounds")
