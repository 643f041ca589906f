"""The command `paceline prepare`."""

from __future__ import annotations

from dataclasses import asdict

from rich.status import Status

from paceline.interfaces.cli import data_options, options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.folder_table import show_manifest
from paceline.interfaces.cli.output import print_json


def prepare(
    recipe: data_options.RecipeArgument,
    output: data_options.FolderToMake,
    engine: data_options.DataEngine = "duckdb",
    threads: data_options.DataThreads = None,
    memory: data_options.DataMemory = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Make a folder of shards from raw files, with an account of every row.

    RECIPE is a Python file with a module-level `recipe`. Rows that break a rule are set aside in rejected.parquet with
    their file, line and rule. Given again after it was stopped, the command continues where it left off.
    """
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
