"""The command line: one file per command, and no logic.

Text for people goes to standard error; JSON objects, drawings, the findings of `check` and what `emit` writes go to
standard output.

Exit codes: 0 done; 1 a run failed, a replay diverged, a proof failed or `check` found something; 2 wrong use;
130 interrupted; 143 stopped by SIGTERM.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache

import typer

from paceline.cli.console import console
from paceline.errors import PacelineError, RunStopped

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train PyTorch models in parallel on the machines you have, and measure which way pays off.",
)
INTERRUPTED = 130  # exit code
#: Packages of the extra `train`, which all commands but `check` need.
TRAINING_PACKAGES = ("torch", "numpy", "pyarrow", "cloudpickle", "safetensors")

#: Whether --debug was given.
_debug = False


@app.callback()
def paceline(debug: bool = typer.Option(False, "--debug", help="Show the full traceback of an error.")) -> None:
    global _debug
    _debug = debug


@cache
def register() -> None:
    """Add the commands to `app`; they are imported only now, so that importing this package stays cheap."""
    from paceline.cli import bench, check, compare, draw, emit, keys, prove, replay, report, train, tune

    app.command()(train.train)
    app.command()(tune.tune)
    app.command()(compare.compare)
    app.command()(replay.replay)
    app.command()(draw.draw)
    app.command()(prove.prove)
    app.command()(report.report)
    app.command()(check.check)
    app.command()(bench.bench)
    app.command()(keys.keys)
    app.add_typer(emit.app, name="emit")


def main() -> None:
    """Run a command. An error of Paceline's own is printed as one block, without a traceback."""
    register()
    warnings.showwarning = _print_warning  # type: ignore[assignment]
    if not sys.platform.startswith("linux"):
        console.print("Paceline needs Linux: it uses the kernel's memfd, futex and record locks.", style="red")
        sys.exit(2)
    if "--json" in sys.argv:
        from paceline.cli.output import reserve_stdout

        reserve_stdout()
    try:
        app()
    except PacelineError as error:
        if _debug:
            raise
        message = str(error) if isinstance(error, RunStopped) else f"{type(error).__name__}: {error}"
        console.print(message, style="red", markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except SystemExit as end:  # typer turns a KeyboardInterrupt into one
        if end.code == INTERRUPTED:
            console.print("interrupted; every worker was stopped", style="yellow")
        raise
    except ModuleNotFoundError as error:
        if _debug or error.name not in TRAINING_PACKAGES:
            raise
        console.print(
            f"{error.name} is not installed: training needs `pip install 'paceline[train]'`", style="red", markup=False
        )
        sys.exit(2)


def _print_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if category.__module__.startswith("paceline"):
        console.print(f"note: {message}", style="yellow", markup=False, soft_wrap=True)
