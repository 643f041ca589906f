"""The command `paceline replay`."""

from __future__ import annotations

from time import monotonic

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.output import print_json

EVERY = 10.0  # seconds between two lines about the progress


class _Progress:
    """Prints from time to time how far a replay is; nothing, if it takes no longer than that."""

    def __init__(self) -> None:
        self._next = monotonic() + EVERY

    def __call__(self, updates: int, last: int) -> None:
        if monotonic() >= self._next:
            self._next = monotonic() + EVERY
            console.print(f"replayed {updates:,} of {last:,} updates", style="dim")


def replay(
    run: options.RunArgument, until: options.Until = None, save: options.Save = None, json: options.Json = False
) -> None:
    """Repeat a recorded run in one process, bit for bit.

    With --until the replay stops early, with the model as it was then and the batch that comes next. A run that did not
    finish is replayed as far as it is recorded.
    """
    import torch

    from paceline.runtime.engines.replay.replay import replay as run_again

    replayed_run = run_again(run, until, progress=_Progress())
    if save is not None:
        state = {
            "model": replayed_run.model.state_dict(),
            "batch": replayed_run.guilty_batch,
            "samples": replayed_run.guilty_samples,
        }
        torch.save(state, save)
    if json:
        keys = ("updates", "parameters_sha256", "matches", "guilty_update", "guilty_worker", "loss")
        print_json({key: getattr(replayed_run, key) for key in keys})
        return
    if replayed_run.matches:
        console.print(
            f"the same bits: {replayed_run.updates} updates, parameters {replayed_run.parameters_sha256[:16]}",
            style="green",
        )
        return
    if until is None:
        console.print("the recorded run did not finish; it was replayed as far as it is recorded", style="yellow")
    console.print(f"replayed {replayed_run.updates} updates; parameters {replayed_run.parameters_sha256[:16]}")
    if replayed_run.guilty_samples is not None:
        loss = "not yet computed" if replayed_run.loss is None else f"loss {replayed_run.loss:.6g}"
        few = ", ".join(map(str, replayed_run.guilty_samples[:8].tolist()))
        console.print(
            f"next comes batch {replayed_run.guilty_update} of worker {replayed_run.guilty_worker} ({loss}), samples "
            f"{few}, ...\n"
            "In Python: paceline.replay(run, until=...) returns them as .model and .guilty_batch",
        )
