"""The command `paceline watch`."""

from __future__ import annotations

import typer

from paceline.interfaces.cli import options, watch_options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.output import print_json
from paceline.names import visible


def watch(
    command: watch_options.WatchedCommand = None,
    pid: watch_options.WatchedPid = None,
    run: watch_options.WatchedRun = None,
    open_: watch_options.OpenSnapshot = None,
    seconds: watch_options.WatchSeconds = None,
    kill_after: watch_options.KillAfter = None,
    exec_: watch_options.ExecOnHang = None,
    save: watch_options.SaveSnapshot = None,
    live: watch_options.LiveScreen = False,
    share: watch_options.SharedFolder = None,
    feedback: watch_options.Verdicts = None,
    json: options.Json = False,
) -> None:
    """Watch a program and say when it hangs: since when, who waits for whom at which line, and who is the cause.

    The program is observed through /proc, once a second, and not changed. For a command started here, the report also
    has its Python lines. Exits with the command's code, with 1 if it hung, or with 0 if a process or a run ended
    without a hang.
    """
    from paceline.concurrency.watcher.screen import CLEAR
    from paceline.concurrency.watcher.session import Actions, WatchTarget, watch_target

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
