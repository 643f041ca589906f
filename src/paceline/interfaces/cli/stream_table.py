"""A stream as text for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.folder_table import equation, row_of, show_rules
from paceline.training.shards.sealed import Note, Sealed, SealedList


def event_line(event: Sealed | Note) -> str:
    """Return a line about a shard that was sealed, or about a source."""
    if isinstance(event, Note):
        return f"{event.source} {event.what}"
    rejected = sum(event.rejected.values())
    line = f"{event.source}: {event.read:,} rows = {event.rows:,} kept + {rejected:,} rejected"
    line += f" + {event.duplicates:,} duplicates" if event.duplicates else ""
    moved = [
        f"{name} has moved ({drift.population_stability:.2f})" for name, drift in event.drift.items() if drift.moved
    ]
    return "; ".join([line, *moved])


def show_stream(folder: Path, sealed: SealedList) -> None:
    """Print the account of a stream, its sources, and the drift of its columns."""
    account = sealed.account
    console.print(f"{folder}: {equation(account)}", soft_wrap=True)
    show_rules(account, folder / "rejected")
    console.print(f"{len(sealed.shards):>12,}  shard{'s' * (len(sealed.shards) != 1)}, from")
    notes = {note.source: note.what for note in sealed.notes}
    rows = Counter[str]()
    for shard in sealed.shards:
        rows[shard.source] += shard.rows
    for source in {**rows, **notes}:
        what = f": {notes[source]}" if source in notes else ""
        console.print(f"{rows[source]:>12,}  {source}{what}", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("column")
    table.add_column("row")
    for head in ("stability", "worst", "KS", "worst", "moved"):
        table.add_column(head, justify="right")
    for name, column in sealed.columns.items():
        drifts = [shard.drift[name] for shard in sealed.shards if name in shard.drift]
        figures = [[each.population_stability for each in drifts], [each.kolmogorov_smirnov for each in drifts]]
        cells = [f"{value:.3f}" for each in figures if each for value in (each[-1], max(each))]
        moved = [str(sum(each.moved for each in drifts))] if drifts else []
        table.add_row(name, row_of(column), *cells, *moved)
    console.print(table)


def described(sealed: SealedList) -> dict[str, Any]:
    """Return a stream as data."""
    return {
        "account": asdict(sealed.account),
        "columns": {name: asdict(column) for name, column in sealed.columns.items()},
        "shards": [asdict(shard) for shard in sealed.shards],
        "notes": [asdict(note) for note in sealed.notes],
        "recipe": sealed.recipe,
    }
