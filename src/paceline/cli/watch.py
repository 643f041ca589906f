"""The command `paceline watch`."""

from __future__ import annotations

import typer

from paceline.cli import options
from paceline.cli.console import console
from paceline.cli.output import print_json


def watch(
    command: options.WatchedCommand = None,
    pid: options.WatchedPid = None,
    run: options.WatchedRun = None,
    open_: options.OpenSnapshot = None,
    seconds: options.WatchSeconds = None,
    kill_after: options.KillAfter = None,
    exec_: options.ExecOnHang = None,
    save: options.SaveSnapshot = None,
    json: options.Json = False,
) -> None:
    """Watch a program and say when it hangs: since when, who waits for whom at which line, and who is the cause.

    It is observed through /proc, once a second, and not changed. A command that is started here also tells its Python
    lines. Exits with the command's code, with 1 when it hung, or with 0 when a process or a run ended without a hang.
    """
    from paceline.watcher.session import Actions, Target, watch_target

    def tell(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    target = Target(tuple(command or ()), pid, run, open_, seconds)
    outcome = watch_target(target, Actions(tell, kill_after, exec_, save))
    if json:
        print_json(outcome.to_dict())
    raise typer.Exit(outcome.code)
