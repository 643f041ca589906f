"""The command `paceline data`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import typer

from paceline.interfaces.cli import data_options, options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.folder_table import show_manifest
from paceline.interfaces.cli.output import print_json


def data(
    folder: data_options.ShardsFolder,
    verify: data_options.Verify = False,
    export: data_options.Export = None,
    split: data_options.ExportedSplit = "",
    json: options.Json = False,
) -> None:
    """Show what a folder of shards, or a stream, holds and where every row went.

    With --verify every file is read and compared with what was written; exit code 1 if one differs.
    """
    from paceline.interfaces.cli.stream_table import described, show_stream
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
