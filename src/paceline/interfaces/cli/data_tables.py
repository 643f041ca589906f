"""A folder of shards and a stream, as text for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from paceline.interfaces.cli.terminal import console
from paceline.training.shards.manifest import Account, Column, Manifest
from paceline.training.shards.sealed import Note, Sealed, SealedList

# A folder of shards as text for people.

#: What can be done about rows that broke a rule of the file's own.
WAYS_OUT = {"not UTF-8": " (`iconv -f LATIN1 -t UTF-8 FILE` recodes a file of Latin-1)"}


def show_manifest(folder: Path, manifest: Manifest) -> None:
    """Print the account of a folder's rows, its splits and its columns."""
    console.print(f"{folder}: {equation(manifest.account)}", soft_wrap=True)
    show_rules(manifest.account, folder / "rejected.parquet")
    for name, split in manifest.splits.items():
        console.print(f"{split.rows:>12,}  rows in {name}, {len(split.shards)} shard{'s' * (len(split.shards) != 1)}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("column")
    table.add_column("row")
    for head in ("mean", "std", "least", "greatest"):
        table.add_column(head, justify="right")
    for name, column in manifest.columns.items():
        statistics = column.statistics
        figures = (statistics.mean, statistics.std, statistics.least, statistics.greatest) if statistics else ()
        table.add_row(name, row_of(column), *(f"{value:.4g}" for value in figures))
    console.print(table)


def row_of(column: Column) -> str:
    """Describe a row of a column, such as `784 x uint8` or `text`."""
    import numpy as np

    if column.text:
        return "text"
    if column.vocabulary:
        return f"one of {len(column.vocabulary):,} words"
    kind = np.dtype(column.dtype).name
    if column.ragged:
        return f"any number of {kind}"
    return f"{' x '.join(map(str, column.shape))} {kind}".strip()


def equation(account: Account) -> str:
    """Return where every row went, as a sum."""
    rejected = sum(account.rejected.values())
    return f"{account.read:,} rows = {account.kept:,} kept + {rejected:,} rejected + {account.duplicates:,} duplicates"


def show_rules(account: Account, listed: Path) -> None:
    """Print how many rows broke each rule, and where they are listed."""
    for rule, rows in account.rejected.items():
        way_out = WAYS_OUT.get(rule, "")
        console.print(f"{rows:>12,}  {rule}{way_out}", soft_wrap=True)
    if account.rejected:
        console.print(f"{'':>12}  listed in {listed}", soft_wrap=True)


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
