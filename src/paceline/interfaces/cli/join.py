"""The command `paceline join`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console, saying

if TYPE_CHECKING:
    from paceline.runtime.engines.joining.guest import Offer


def join(
    words: options.Code, yes: options.Yes = False, runs: options.Runs = Path("runs"), quiet: options.Quiet = False
) -> None:
    """Let this machine take part in a training on another one, which shows CODE.

    The job, the modules beside it and small files that it reads come from there, and are run here as this user: you are
    asked once. Ctrl-C leaves the run, which goes on without this machine. If the machine that leads is lost, another
    one leads; if it is this one, the run's folder is made in --runs, and others join here.
    """
    from paceline.runtime.engines.joining import guest

    door, code = guest.parse(words)
    plain = not console.is_terminal  # it would print an empty line
    with Progress(
        TextColumn("the job"), BarColumn(), DownloadColumn(), console=console, transient=True, disable=plain
    ) as bar:
        task = bar.add_task("", total=None, visible=False)

        def consents(offer: Offer) -> bool:
            if yes:
                console.print(_described(offer), soft_wrap=True)
                return True
            bar.stop()
            agreed = typer.confirm(
                f"{_described(offer)}\nMay code from {offer.host} run on this machine, as you?", err=True
            )
            bar.start()
            return agreed

        def progress(come: int, total: int) -> None:
            bar.update(task, completed=come, total=total, visible=come < total)

        joined = guest.visit_run(door, code, consents, progress, saying(quiet=False))
    runs = runs.absolute()
    with joined as guest_here:
        console.print(f"joined the run of {guest_here.offer.host} as rank {guest_here.rank}; Ctrl-C leaves it")
        from paceline.interfaces.api.train import take_part
        from paceline.interfaces.callbacks.progress_bar import ProgressBar
        from paceline.interfaces.cli.train import report

        run = take_part(guest_here, runs, [ProgressBar("", quiet, console)])
        if run.path is not None:
            report(run)
        else:
            console.print("the run is done; the machine that leads it has its folder")


def _described(offer: Offer) -> str:
    files = f", {len(offer.files)} file{'s' * (len(offer.files) > 1)}" if offer.files else ""
    return f"{offer.host} trains {offer.job} by {offer.plan}: {offer.bytes / 1e6:.1f} MB{files}"
