"""The arguments and options of the commands about data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
