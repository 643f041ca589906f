"""The command `paceline ingest`."""

from __future__ import annotations

from dataclasses import asdict

from paceline.interfaces.cli import data_options, options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.output import print_json


def ingest(
    recipe: data_options.RecipeArgument,
    output: data_options.StreamFolder,
    inputs: data_options.StreamInputs = None,
    rows: data_options.ShardOfRows = 8192,
    ahead: data_options.Ahead = None,
    patience: data_options.Patience = 30.0,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Add rows to a stream, which trainings read while it grows.

    Reads files, http addresses or standard input, one after another, until all have ended. RECIPE has one source of
    lines, whose own files are not read. Rows that break a rule are set aside. Given again after it was stopped, the
    command continues after the last shard that it sealed.
    """
    from paceline.interfaces.cli.stream_table import event_line
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
