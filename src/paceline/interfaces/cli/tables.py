"""Results as text and tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from paceline.interfaces.cli.console import PlainConsole, console
from paceline.runtime.runs.run import summary_lines
from paceline.text_table import TextList, TextTable

if TYPE_CHECKING:
    from paceline.interfaces.api.comparing.compare_scripts import ScriptComparison


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
