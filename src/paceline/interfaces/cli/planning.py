"""The planner's results as text and tables for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.tables import rich_table

if TYPE_CHECKING:
    from paceline.planning.planner.card import Card
    from paceline.planning.planner.choosing import Choice
    from paceline.planning.planner.validating import Validation


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
