"""The commands about recorded runs: `paceline runs`, `paceline replay` and `paceline report`."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated, NamedTuple

import typer

from paceline.errors import RunFolderError, UsageError
from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import console, print_json

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


EVERY = 10.0  # seconds between two lines about the progress of a replay


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


def report(
    runs: options.RunArguments,
    output: options.Output = None,
    form: options.ReportFormat = "html",
    live: options.Live = False,
    port: options.LivePort = 0,
) -> None:
    """Write a report on one run, or on several side by side: one HTML file that needs no network.

    A folder that contains run folders, such as that of a comparison, stands for all of them. The other formats hold
    the same figures for other programs.

    With --live, the report is a page that follows the runs until Ctrl-C: what each worker is at, the curves so far, a
    hang that `paceline watch` has found. Only this machine can open it.
    """
    if live:
        if output is not None or form != "html":
            raise UsageError("--live serves a page and writes no file; leave --output and --format out")
        _follow(runs, port)
    elif port:
        raise UsageError("--port is the port of --live; add --live, or leave --port out")
    else:
        _write(runs, output, form)


def _write(runs: options.RunArguments, output: options.Output, form: str) -> None:
    from paceline.runtime.report import write

    for file in write(runs, output, form):
        console.print(str(file), soft_wrap=True)


def _follow(runs: options.RunArguments, port: int) -> None:
    from contextlib import suppress

    from paceline.interfaces.cli.live_page import server

    with server(runs, port) as serving, suppress(KeyboardInterrupt):
        console.print(f"http://127.0.0.1:{serving.server_port}/  (Ctrl-C ends this page, and nothing else)")
        serving.serve_forever()
