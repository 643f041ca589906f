"""The command `paceline runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from paceline.errors import RunFolderError, UsageError
from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.output import print_json

RunsFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that contains the run folders.")]
Words = Annotated[
    str,
    typer.Option(
        "--filter",
        metavar="WORDS",
        help="List only runs with all of these words in their row or plan.",
        show_default=False,
    ),
]
Delete = Annotated[bool, typer.Option("--delete", help="Delete the folders of the listed runs, after a question.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without a question.")]


class _ListedRun(NamedTuple):
    """A run as it is listed; figures that it lacks are None."""

    folder: Path
    started: str
    status: str
    plan: str
    workers: int
    updates: int | None
    samples_per_second: float | None
    train_loss: float | None
    test_accuracy: float | None

    def cells(self) -> tuple[str, ...]:
        return (
            self.folder.name,
            self.status,
            str(self.workers),
            *(
                "-" if value is None else form.format(value)
                for value, form in (
                    (self.updates, "{:,}"),
                    (self.samples_per_second, "{:,.0f}"),
                    (self.train_loss, "{:.4g}"),
                    (self.test_accuracy, "{:.1%}"),
                )
            ),
        )


def runs(
    folder: RunsFolder = Path("runs"),
    words: Words = "",
    delete: Delete = False,
    yes: Yes = False,
    json: options.Json = False,
) -> None:
    """List the runs in a folder with their status and figures, newest last; or delete those that a filter selects.

    To see several side by side: `paceline report FOLDER`. To follow those that go on: `paceline report --live FOLDER`.
    """
    from paceline.runtime.report.reading import run_folders

    listed = [run for run in sorted(map(_listed, run_folders(folder)), key=_start) if _matches(run, words)]
    if not listed:
        raise RunFolderError(f"no run in {folder} contains {words!r}; `paceline runs {folder}` lists them all")
    if json:
        print_json({"runs": [run._asdict() for run in listed]})
    else:
        _show(folder, listed)
    if delete:
        _delete(listed, words, yes)


def _start(run: _ListedRun) -> tuple[str, str]:
    return run.started, run.folder.name


def _listed(folder: Path) -> _ListedRun:
    from paceline.runtime.runs.live import read_live
    from paceline.runtime.runs.record import read_record

    record, live = read_record(folder), read_live(folder)
    summary = record.summary
    status = str(record.status)
    if status == "running" and not (live and live.active):
        status = "killed"
    accuracy = record.history[-1].metrics.get("test_accuracy") if record.history else None
    return _ListedRun(
        folder,
        record.started,
        status,
        record.plan,
        record.workers,
        summary.updates if summary else live.updates if live else None,
        summary.samples_per_second if summary else None,
        summary.train_loss if summary else None,
        accuracy,
    )


def _matches(run: _ListedRun, words: str) -> bool:
    text = " ".join((*run.cells(), run.plan)).lower()
    return all(word in text for word in words.lower().split())


def _show(folder: Path, listed: list[_ListedRun]) -> None:
    from paceline.text_table import TextTable

    heads = ("run", "status", "workers", "updates", "samples/s", "loss", "accuracy")
    title = f"{len(listed)} run{'s' * (len(listed) > 1)} in {folder}"
    console.print(str(TextTable(title, heads, tuple(run.cells() for run in listed))), soft_wrap=True)


def _delete(listed: list[_ListedRun], words: str, yes: bool) -> None:
    import shutil

    if going := [run.folder.name for run in listed if run.status == "running"]:
        raise UsageError(f"{going[0]} goes on; stop it first, or select other runs by --filter")
    if not words and not yes:
        raise UsageError("--delete without --filter deletes every run; give --filter WORDS, or --yes for all of them")
    if not yes and not typer.confirm(f"Delete these {len(listed)} folders?"):
        return
    for run in listed:
        shutil.rmtree(run.folder)
    console.print(f"{len(listed)} run folders deleted")
