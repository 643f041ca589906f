"""Results as text and tables for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from paceline.interfaces.cli.terminal import PlainConsole, console
from paceline.runtime.runs.run import summary_lines
from paceline.text_table import TextList, TextTable

if TYPE_CHECKING:
    from paceline.compression.precision import Precisions
    from paceline.compression.result import Compression, Point
    from paceline.interfaces.api.comparing.compare_scripts import ScriptComparison
    from paceline.interfaces.api.planning.null_model import NullModel, NullStep
    from paceline.planning.planner.card import Card
    from paceline.planning.planner.choosing import Choice
    from paceline.planning.planner.validating import Validation


def rich_table(shown: TextTable) -> Table:
    """Return a table as a terminal shows it."""
    table = Table(title=shown.title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column(shown.heads[0], vertical="bottom", overflow="fold")  # a second line rather than a cut figure
    for head in shown.heads[1:]:
        table.add_column(head, justify="right", vertical="bottom", no_wrap=" " not in head)
    for row in shown.rows:
        table.add_row(*row)
    return table


def show_summary(summary: dict[str, Any]) -> None:
    """Print a finished run, one line per subject."""
    console.print(str(TextList("", summary_lines(summary))), soft_wrap=True)


def show_scripts(comparison: ScriptComparison) -> None:
    """Print a script's steps on gloo and on Paceline's backend."""
    table = Table(title=f"{comparison.script}, unchanged", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("")
    for name in ("ms/step", "±", "batches/s", "speed", "whole", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows:
        half = (row.spread[1] - row.spread[0]) / 2
        table.add_row(
            row.name,
            f"{row.milliseconds_per_step:.2f}",
            f"{half:.2f}",
            f"{row.batches_per_second:,.0f}",
            f"{row.speedup:.2f}x",
            f"{row.seconds:.1f} s",
            str(row.steps),
        )
    console.print(table)
    same = {None: "", 0.0: " Both ended with the same parameters, bit for bit."}.get(
        comparison.difference, f" The parameters of the two differ by at most {comparison.difference}."
    )
    console.print(
        f"On gloo a step takes {comparison.over_gloo:.2f} times as long as on paceline.{same} speed: batches per "
        "second of "
        f"all processes, relative to the best without Paceline. Medians of {comparison.rounds} interleaved rounds, ± "
        "half "
        "the range.",
        style="dim",
    )
    for note in comparison.notes:
        console.print(f"note: {note}", style="yellow")
    console.print(f"{comparison.answer}.", style="bold", soft_wrap=True)


def show_plan(plan: dict[str, Any]) -> None:
    """Print one plan and its options on standard output, since they were asked for."""
    out = PlainConsole()
    also = f"; also called {', '.join(plan['also_called'])}" if plan["also_called"] else ""
    out.print(Text.assemble((plan["name"], "bold"), f": {plan['about']}{also}"))
    out.print(plan["group"], style="dim")
    table = Table("option", "default", "values", "", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for option in plan["options"]:
        default = "-" if option["default"] in (None, "") else str(option["default"])
        table.add_row(option["name"], default, option["values"], option["meaning"])
    out.print(table)
    example = plan["name"] + (":workers=4" if any(each["name"] == "workers" for each in plan["options"]) else "")
    out.print(f"train by it  paceline train JOB --plan {example}")
    out.print(f"see it       paceline draw {plan['name']}")


def show_plans(groups: dict[str, list[dict[str, Any]]]) -> None:
    """Print all plans by group on standard output, since they were asked for."""
    out = PlainConsole()
    for title, plans in groups.items():
        out.print(title, style="bold")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, min_width=18)
        for plan in plans:
            plan_options = [option for option in plan["options"] if option not in ("workers", "threads")]
            also = f"; also called {', '.join(plan['also_called'])}" if plan["also_called"] else ""
            table.add_row(f"  {plan['name']}", f"{plan['about']}{also}")
            if plan_options:
                table.add_row("", Text(", ".join(plan_options), "dim"))
        out.print(table)
        out.print()
    out.print("Options follow a colon, as in downpour:workers=4,shards=2; most plans take workers and threads as well.")


# The planner's results as text and tables for people.


def _seconds(value: float) -> str:
    from paceline.planning.planner.choosing import micro

    return micro(value)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column(columns[0], no_wrap=True)
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def show_card(card: Card, place: Path) -> None:
    """Print what a card says of a machine."""
    console.print(f"{card.processor}, {card.cores} cores, {card.memory / 2**30:.1f} GiB")
    table = _table("Operations", "workers x threads", "GFLOP/s matmul", "GB/s", "µs a call", "error of a step")
    for each in card.operations:
        flop, byte = each.compute.get("matmul.large", 0.0), each.compute.get("far", 0.0)
        table.add_row(
            f"{each.busy} x {each.threads}",
            f"{1e-9 / flop:,.0f}" if flop else "-",
            f"{1e-9 / byte:,.1f}" if byte else "-",
            f"{each.compute.get('call', 0.0) * 1e6:.1f}",
            f"±{each.error:.0%}",
        )
    console.print(table)
    table = _table("Exchanges", "kind", "workers", "latency", "GB/s", "Python")
    for one in card.exchanges:
        speed = one.bandwidth / 1e9
        table.add_row(
            one.kind,
            str(one.workers),
            _seconds(one.latency),
            f"{speed:,.1f}" if speed < 900 else "-",
            _seconds(one.between),
        )
    console.print(table)
    console.print(f"card  {place}", soft_wrap=True)


def show_choice(choice: Choice, left_out: bool = False) -> None:
    """Print a ranking, the explanation, and the command to use; `left_out`: only plans that learn as one process does
    were compared.
    """
    shown = choice.table()
    console.print(rich_table(shown))
    more = len(choice.ranking) - len(shown.rows)
    if more > 0:
        console.print(f"and {more} slower ones (--json has all)", style="dim")
    if left_out:
        console.print(
            "Asynchronous plans and averaged replicas learn differently and are left out; --learning any includes them",
            style="dim",
            soft_wrap=True,
        )
    for note in choice.notes():
        console.print(note, soft_wrap=True)
    console.print(f"to use it: {choice.command}", style="bold", soft_wrap=True)


def show_validation(validation: Validation) -> None:
    """Print predicted against measured."""
    console.print(rich_table(validation.table()))
    for note in validation.notes():
        console.print(note, soft_wrap=True)


# What a compression found, as a table for people.


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


# What `paceline bench null` measured, as Markdown.


def table(benchmark: NullModel) -> str:
    """Write one row for each case and number of workers, then what could not be trained, then the paper's figures."""
    from paceline.interfaces.api.planning.null_model import PLANS, PUBLISHED

    lines = [
        f"A null step of one worker in ms (least to most of the rounds), on {benchmark.cores} cores:",
        "",
        "| case | workers | " + " | ".join(f"{mode}, `{name}`" for mode, name in PLANS.items()) + " | MB a step |",
        "|---|---:|" + "---:|" * (len(PLANS) + 1),
    ]
    rows = dict.fromkeys((step.case, step.workers) for step in benchmark.steps)
    for case, workers in rows:
        mine = {s.mode: s for s in benchmark.steps if (s.case, s.workers) == (case, workers)}
        cells = [_cell(mine.get(mode)) for mode in PLANS]
        sent = max(step.bytes for step in mine.values()) / 1e6
        lines.append(f"| {case} | {workers} | " + " | ".join(cells) + f" | {sent:.3g} |")
    whys = dict.fromkeys((each.case, each.mode, each.why) for each in benchmark.refused)
    lines += ["", *(f"Not measured: {case}, {mode}: {why}" for case, mode, why in whys)]
    lines += ["", "TensorFlow's paper, 16 servers on other machines, with 1 and with 100 workers in step:", ""]
    lines += [f"- {case}: {first:,.4g} and {last:,.4g} ms" for case, (first, last) in PUBLISHED.items()]
    return "\n".join(lines)


def _cell(step: NullStep | None) -> str:
    if step is None:
        return "-"
    return f"{step.step * 1e3:.3g} ({step.low * 1e3:.3g} to {step.high * 1e3:.3g})"
