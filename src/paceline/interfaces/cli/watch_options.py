"""The arguments and options of `paceline watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
