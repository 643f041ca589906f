"""The command line: a file per command, no logic. What is for people goes to standard error; `--json`, drawings and
what `check` finds to standard output.

Exit codes: 0 done, 1 a failed run, a replay that diverged, a proof that failed or something found by `check`, 2 wrong
use, 130 interrupted, 143 stopped by SIGTERM.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache

import typer
from rich.console import Console

from paceline.errors import PacelineError, RunStopped

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train PyTorch models in parallel on the machines you have, and learn which way pays.",
)
console = Console(stderr=True, highlight=False)


INTERRUPTED = 130


@app.callback()
def paceline(
    debug: bool = typer.Option(False, "--debug", help="Show the whole traceback of an error."),
) -> None:
    global _debug
    _debug = debug


_debug = False


@cache
def register() -> None:
    """Tell `app` its commands."""
    from paceline.cli import bench, check, compare, draw, prove, replay, report, train

    app.command()(train.train)
    app.command()(compare.compare)
    app.command()(replay.replay)
    app.command()(draw.draw)
    app.command()(prove.prove)
    app.command()(report.report)
    app.command()(check.check)
    app.command()(bench.bench)


def main() -> None:
    """Run a command; every error of ours is one block without a traceback."""
    register()
    warnings.showwarning = _say_warning  # type: ignore[assignment]
    if not sys.platform.startswith("linux"):
        console.print("Paceline needs Linux: its shared memory and its record locks are the kernel's.", style="red")
        sys.exit(2)
    if "--json" in sys.argv:
        from paceline.cli.output import keep_for_json

        keep_for_json()
    try:
        app()
    except PacelineError as error:
        if _debug:
            raise
        told = str(error) if isinstance(error, RunStopped) else f"{type(error).__name__}: {error}"
        console.print(told, style="red", markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except SystemExit as end:  # typer makes one of a KeyboardInterrupt
        if end.code == INTERRUPTED:
            console.print("interrupted; every worker was stopped", style="yellow")
        raise
    except ModuleNotFoundError as error:
        if _debug or error.name not in ("torch", "numpy", "pyarrow", "cloudpickle", "safetensors"):
            raise
        console.print(
            f"{error.name} is missing: training needs `pip install 'paceline[train]'`",
            style="red",
            markup=False,
        )
        sys.exit(2)


def _say_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if category.__module__.startswith("paceline"):
        console.print(f"note: {message}", style="yellow", markup=False, soft_wrap=True)
