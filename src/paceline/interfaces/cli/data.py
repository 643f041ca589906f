"""The commands `paceline data`, `paceline prepare` and `paceline ingest`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.status import Status

from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import console, print_json


def data(
    folder: ShardsFolder,
    verify: Verify = False,
    export: Export = None,
    split: ExportedSplit = "",
    json: options.Json = False,
) -> None:
    """Show what a folder of shards, or a stream, holds and where every row went.

    With --verify every file is read and compared with what was written; exit code 1 if one differs.
    """
    from paceline.interfaces.cli.data_tables import described, show_manifest, show_stream
    from paceline.training.shards.files import damaged, damaged_stream
    from paceline.training.shards.files import export as write_export
    from paceline.training.shards.manifest import read_manifest
    from paceline.training.shards.sealed import SealedList, is_stream

    if export is not None:
        rows = write_export(folder, read_manifest(folder), export, split)
        if json:
            print_json({"folder": str(folder), "file": str(export), "rows": rows})
        else:
            console.print(f"{export}: {rows:,} rows", soft_wrap=True)
        return
    if is_stream(folder):
        sealed = SealedList(folder)
        faults = list(damaged_stream(folder, sealed)) if verify else []
        body, show = described(sealed), partial(show_stream, folder, sealed)
    else:
        manifest = read_manifest(folder)
        faults = list(damaged(folder, manifest)) if verify else []
        body, show = asdict(manifest), partial(show_manifest, folder, manifest)
    if json:
        print_json({"folder": str(folder), **body, "damaged": faults if verify else None})
    else:
        show()
        for fault in faults:
            console.print(f"damaged: {fault}", style="red", soft_wrap=True)
        if verify and not faults:
            console.print("every file holds what was written", style="green")
    if faults:
        raise typer.Exit(1)


# The arguments and options of the commands about data.

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A Python file with a module-level `recipe` (or file.py:name).")
]
FolderToMake = Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The folder to make.")]
DataEngine = Annotated[str, typer.Option(help="What reads and sorts: duckdb, in this process; or spark.")]
DataThreads = Annotated[int | None, typer.Option(min=1, help="Threads of the engine.", show_default="all cores")]
DataMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory of the engine, such as 512MB; beyond it, files are used.")
]
ShardsFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A folder that `paceline prepare` or `paceline ingest` made.")
]
StreamFolder = Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The stream to add to.")]
StreamInputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="INPUT", help="Files, http addresses or - for standard input.", show_default="-"),
]
ShardOfRows = Annotated[int, typer.Option("--rows", min=1, help="Lines that are read for each shard.")]
Ahead = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Wait while N rows are unread by any training.", show_default="any"),
]
Patience = Annotated[
    float, typer.Option(min=0.01, metavar="SECONDS", help="Time without a line after which an input counts as stopped.")
]
Verify = Annotated[bool, typer.Option("--verify", help="Read every file and compare it with what was written.")]
Export = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a split as one .parquet or .arrow file.", show_default="no")
]
ExportedSplit = Annotated[
    str, typer.Option("--split", help="The split that --export writes.", show_default="the first")
]


def prepare(
    recipe: RecipeArgument,
    output: FolderToMake,
    engine: DataEngine = "duckdb",
    threads: DataThreads = None,
    memory: DataMemory = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Make a folder of shards from raw files, with an account of every row.

    RECIPE is a Python file with a module-level `recipe`. Rows that break a rule are set aside in rejected.parquet with
    their file, line and rule. Given again after it was stopped, the command continues where it left off.
    """
    from paceline.interfaces.cli.data_tables import show_manifest
    from paceline.training.preparation.prepare import prepare as run
    from paceline.training.preparation.recipe import load_recipe

    loaded = load_recipe(recipe)
    with Status("starting", console=console) as status:
        show = (lambda step, rows: None) if quiet else (lambda step, rows: status.update(f"{step}: {rows:,} rows"))
        manifest = run(loaded, output, engine, threads, memory, show)
    if json:
        splits = {name: split.rows for name, split in manifest.splits.items()}
        print_json({"folder": str(output), **asdict(manifest.account), "splits": splits})
    else:
        show_manifest(output, manifest)


def ingest(
    recipe: RecipeArgument,
    output: StreamFolder,
    inputs: StreamInputs = None,
    rows: ShardOfRows = 8192,
    ahead: Ahead = None,
    patience: Patience = 30.0,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Add rows to a stream, which trainings read while it grows.

    Reads files, http addresses or standard input, one after another, until all have ended. RECIPE has one source of
    lines, whose own files are not read. Rows that break a rule are set aside. Given again after it was stopped, the
    command continues after the last shard that it sealed.
    """
    from paceline.interfaces.cli.data_tables import event_line
    from paceline.training.preparation.ingest import STANDARD_INPUT
    from paceline.training.preparation.ingest import ingest as run
    from paceline.training.preparation.recipe import load_recipe
    from paceline.training.shards.sealed import Note, Sealed

    def show(event: Sealed | Note) -> None:
        if isinstance(event, Note) or not quiet:
            style = "yellow" if isinstance(event, Note) else None
            console.print(event_line(event), style=style, soft_wrap=True)

    account = run(load_recipe(recipe), output, inputs or [STANDARD_INPUT], rows, ahead, patience, show)
    if json:
        print_json({"folder": str(output), **asdict(account)})
