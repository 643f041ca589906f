"""The command line: a file per command, or for a few of one subject, and no logic.

Text for people goes to standard error; JSON objects, drawings, the findings of `check` and what `emit` writes go to
standard output.

Exit codes: 0 done; 1 a run failed, a replay diverged, a proof failed, `check` or `explore` found something or `watch` a
hang; 2 wrong use; 3 `check` failed in a file; 130 interrupted; 143 stopped by SIGTERM.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from functools import cache
from importlib import import_module

import typer
from typer.main import get_command

from paceline.errors import PacelineDeprecationWarning, PacelineError, RunOver, RunStopped, UsageError
from paceline.errors.renames import COMMAND_OPTIONS, FAMILIAR_OPTIONS, OPTIONS
from paceline.interfaces.cli.environment import check_environment, notify_torchrun, rank_before
from paceline.interfaces.cli.terminal import Command, Group, console
from paceline.runtime.engines.signals import INTERRUPTED, termination

app = typer.Typer(
    cls=Group,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train PyTorch models in parallel, and measure which method is fastest on your own model.",
)
#: The commands in the order and the groups in which they are listed; each is a function of its name.
COMMANDS = {
    "Train": ("train", "join", "compare", "replay", "verify", "report", "runs"),
    "Choose a plan and a configuration": ("plans", "choose", "calibrate", "validate", "simulate", "tune"),
    "Data": ("prepare", "ingest", "data"),
    "Find what is wrong with a program": ("check", "watch", "explore", "explain"),
    "Deploy": ("compress", "emit", "keys", "doctor"),
    "Look inside": ("draw", "prove", "bench"),
}
#: The files of commands that share one; any other is in a file of its own name.
FILES = {
    **dict.fromkeys(("join", "keys", "doctor"), "machines"),
    **dict.fromkeys(("choose", "calibrate", "validate", "simulate"), "planner"),
    **dict.fromkeys(("prepare", "ingest"), "data"),
    **dict.fromkeys(("replay", "report"), "runs"),
    **dict.fromkeys(("draw", "prove"), "plans"),
    "explain": "check",
    "verify": "compare",
}
NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
#: Packages of the extra `train`, which all commands but `check` need.
TRAINING_PACKAGES = ("torch", "numpy", "pyarrow", "cloudpickle", "safetensors")

#: Whether --debug was given.
_debug = False


def _print_version(requested: bool) -> None:
    if requested:
        from paceline.version import __version__

        sys.stdout.write(f"paceline {__version__}\n")
        raise typer.Exit


@app.callback()
def paceline(
    debug: bool = typer.Option(False, "--debug", help="Show the full traceback of an error."),
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None:
    global _debug
    _debug = debug


@cache
def register() -> None:
    """Add the commands to `app`; they are imported only now, so that importing this package stays cheap."""
    for group, names in COMMANDS.items():
        for name in names:
            module = import_module(f"paceline.interfaces.cli.{FILES.get(name, name)}")
            if name == "emit":  # which has commands of its own
                app.add_typer(module.app, name=name, rich_help_panel=group)
            else:
                app.command(cls=Command, rich_help_panel=group)(getattr(module, name))


def main() -> None:
    """Run a command. An error of Paceline's own is printed as one block, without a traceback."""
    _open_closed_streams()
    register()
    with termination.interrupts():
        _run()


def _run() -> None:
    warnings.simplefilter("default", PacelineDeprecationWarning)
    warnings.showwarning = _print_warning  # type: ignore[assignment]
    if not sys.platform.startswith("linux"):
        console.print("Paceline needs Linux: it uses the kernel's memfd, futex and record locks.", style="red")
        sys.exit(2)
    ours, command = _split(sys.argv[1:])
    if "--json" in ours:
        from paceline.interfaces.cli.terminal import reserve_stdout

        reserve_stdout()
    try:
        check_environment(os.environ)
        arguments = [*_by_new_names(ours), *command]
        sys.argv[1:] = []  # they are not those of a user's file, or of what it imports
        app(args=arguments, prog_name="paceline")  # however it was started: by torchrun it is `python -m paceline`
    except PacelineError as error:
        if _debug:
            raise
        message = str(error) if isinstance(error, RunStopped) else f"{type(error).__name__}: {error}"
        if not isinstance(error, RunOver):  # of which another rank has the reason
            notify_torchrun(message)
        console.print(f"{rank_before(os.environ)}{message}", style="red", soft_wrap=True)
        sys.exit(termination.exit_code or error.exit_code)
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns a KeyboardInterrupt into a SystemExit
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        terminated = termination.requested == signal.SIGTERM
        if not (terminated and "watch" in ours):  # so a run ends the watcher that it has started
            how = "stopped by SIGTERM" if terminated else "interrupted"
            console.print(f"{how}; every worker was stopped", style="yellow")
        sys.exit(termination.exit_code or INTERRUPTED)
    except ModuleNotFoundError as error:
        if _debug or error.name not in TRAINING_PACKAGES:
            raise
        console.print(f"{error.name} is not installed: training needs `pip install 'paceline[train]'`", style="red")
        sys.exit(2)
    except OSError as error:
        if _debug or error.errno not in NOT_WRITTEN:
            raise
        where = f" to {error.filename}" if error.filename else ""
        console.print(
            f"nothing more can be written{where}: {error.strerror}; make room, or name another place (--runs, -o)",
            style="red",
            soft_wrap=True,
        )
        _drop_output()
        sys.exit(1)


def _open_closed_streams() -> None:
    """Open standard streams that were closed, so that no file of a run gets the number of one."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _drop_output() -> None:
    """Drop what standard output could not take, which Python would try again at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return Paceline's own words, and those from `--` on, which belong to a command that it starts."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at:]


def _by_new_names(words: list[str]) -> list[str]:
    """Return the words of a command line with renamed options under their new names."""
    translated = []
    renamed = OPTIONS | COMMAND_OPTIONS.get(next(iter(words), ""), {})
    for word in words:
        option, equals, value = word.partition("=")
        familiar = FAMILIAR_OPTIONS.get(option.replace("_", "-"))
        if familiar is not None and option not in _options(words):
            raise UsageError(f"there is no option {option}; {familiar}")
        if option in renamed:
            console.print(f"note: {option} is called {renamed[option]} now", style="yellow")
        translated.append(renamed.get(option, option) + equals + value)
    return translated


def _options(words: list[str]) -> set[str]:
    """Return the options of the command that a command line names."""
    command = get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return {option for each in command.params for option in each.opts}


def _print_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if category.__module__.startswith("paceline"):
        console.print(f"note: {message}", style="yellow", soft_wrap=True)
