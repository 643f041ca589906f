"""The command `paceline report`."""

from __future__ import annotations

from paceline.errors import UsageError
from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console


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
