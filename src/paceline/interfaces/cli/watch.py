"""The command `paceline watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import console, print_json
from paceline.names import visible

# The arguments and options of `paceline watch`.

WatchedCommand = Annotated[
    list[str] | None, typer.Argument(metavar="-- COMMAND", help="The command to start and watch, after `--`.")
]
WatchedPid = Annotated[int | None, typer.Option("--pid", help="Watch a process that runs, and its descendants.")]
WatchedRun = Annotated[Path | None, typer.Option("--run", metavar="RUN", help="Watch an active run of Paceline.")]
OpenSnapshot = Annotated[Path | None, typer.Option("--open", metavar="DIR", help="Show what --save has written.")]
WatchSeconds = Annotated[
    float | None,
    typer.Option("--seconds", min=1.0, help="With --pid or --run: watch no longer than this."),
]
KillAfter = Annotated[
    float | None,
    typer.Option("--kill-after", min=0.0, metavar="S", help="End a program that hangs, S seconds after the report."),
]
ExecOnHang = Annotated[
    str | None,
    typer.Option("--exec", metavar="CMD", help="Run this on a hang; it reads the report as JSON."),
]
SaveSnapshot = Annotated[
    Path | None, typer.Option("--save", metavar="DIR", help="On a hang, save what was observed to this folder.")
]
LiveScreen = Annotated[bool, typer.Option("--live", help="Show a row for each process, updated every second.")]
Verdicts = Annotated[
    Path | None,
    typer.Option("--feedback", metavar="FILE", help="Add the checker's findings that a hang confirms to FILE."),
]
SharedFolder = Annotated[
    Path | None,
    typer.Option(
        "--share",
        metavar="DIR",
        help="A folder shared by the watchers of all machines.",
    ),
]


def watch(
    command: WatchedCommand = None,
    pid: WatchedPid = None,
    run: WatchedRun = None,
    open_: OpenSnapshot = None,
    seconds: WatchSeconds = None,
    kill_after: KillAfter = None,
    exec_: ExecOnHang = None,
    save: SaveSnapshot = None,
    live: LiveScreen = False,
    share: SharedFolder = None,
    feedback: Verdicts = None,
    json: options.Json = False,
) -> None:
    """Watch a program and say when it hangs: since when, who waits for whom at which line, and who is the cause.

    The program is observed through /proc, once a second, and not changed. For a command started here, the report also
    has its Python lines. Exits with the command's code, with 1 if it hung, or with 0 if a process or a run ended
    without a hang.
    """
    from paceline.concurrency.watcher.session import Actions, WatchTarget, watch_target
    from paceline.concurrency.watcher.watch import CLEAR

    def print_plain(text: str) -> None:
        console.print(text, soft_wrap=True)

    def show(text: str) -> None:
        console.file.write((CLEAR if console.is_terminal else "") + visible(text) + "\n")
        console.file.flush()

    target = WatchTarget(tuple(command or ()), pid, run, open_, seconds)
    actions = Actions(print_plain, kill_after, exec_, save, show if live else None, share, feedback=feedback)
    outcome = watch_target(target, actions)
    if json:
        print_json(outcome.to_dict())
    raise typer.Exit(outcome.code)
