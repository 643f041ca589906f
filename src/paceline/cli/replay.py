"""paceline replay"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import console, options
from paceline.cli.output import print_json


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    until: Annotated[
        str | None,
        typer.Option(
            help="Stop after this update; `nan`: before the first that is not finite; `failure`: where a worker failed."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(callback=options.writable, help="Write the model (and the guilty batch) to this file."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run a recorded run again in one process, to the same bits.

    With --until the replay stops on the way, with the model as it was then and the batch that comes next.
    """
    import torch

    from paceline.engines.replay.replay import replay as run_again

    found = run_again(run, until)
    if save is not None:
        torch.save(
            {"model": found.model.state_dict(), "batch": found.guilty_batch, "samples": found.guilty_samples},
            save,
        )
    if json:
        print_json(
            {
                "updates": found.updates,
                "parameters_sha256": found.parameters_sha256,
                "matches": found.matches,
                "guilty_update": found.guilty_update,
                "guilty_worker": found.guilty_worker,
                "loss": found.loss,
            }
        )
        return
    if found.matches:
        console.print(
            f"the same bits: {found.updates} updates, parameters {found.parameters_sha256[:16]}",
            style="green",
        )
        return
    console.print(f"replayed {found.updates} updates; parameters {found.parameters_sha256[:16]}")
    if found.guilty_samples is not None:
        loss = "not yet computed" if found.loss is None else f"loss {found.loss:.6g}"
        few = ", ".join(map(str, found.guilty_samples[:8].tolist()))
        console.print(
            f"next comes batch {found.guilty_update} of worker {found.guilty_worker} ({loss}), samples {few}, ...\n"
            "In Python: paceline.replay(run, until=...) leaves them in .model and .guilty_batch", markup=False,
        )  # fmt: skip
