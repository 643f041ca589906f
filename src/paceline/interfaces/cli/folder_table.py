"""A folder of shards as text for people."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from paceline.interfaces.cli.console import console
from paceline.training.shards.manifest import Account, Column, Manifest

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
