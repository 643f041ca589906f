"""What commands write: lines for people on standard error, JSON on standard output, and their help."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typer.core import TyperCommand, TyperGroup

from paceline.errors import UsageError
from paceline.errors.renames import FAMILIAR_COMMANDS
from paceline.names import visible
from paceline.runtime.runs.schema import strict


class PlainConsole(Console):
    """A console that shows text as it is: brackets are no markup, and control characters do nothing to a terminal.

    Names, messages and lines of source come from files, which may be another person's.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


console = PlainConsole(stderr=True)


def saying(quiet: bool) -> Callable[[str], None]:
    """Return what prints a line about progress; nothing, if `quiet`."""
    return lambda line: None if quiet else console.print(line, style="dim", soft_wrap=True)


# What commands hand over: one JSON object on standard output, or a text there or in a file.
# Standard output is reserved for the JSON object; anything else that is printed, here or in a worker, goes to standard
# error.

#: A duplicate of the original standard output, once it is reserved.
_json_output: int | None = None


def reserve_stdout() -> None:
    """Send all output but that of `print_json` to standard error, in processes that are started later too."""
    global _json_output
    sys.stdout.flush()
    _json_output = os.dup(1)
    os.set_inheritable(_json_output, False)
    os.dup2(2, 1)


def print_json(value: Any) -> None:
    """Write one line of strict JSON; NaN and infinities become null."""
    line = json.dumps(strict(value), default=str, allow_nan=False) + "\n"
    if _json_output is None:
        sys.stdout.write(line)
    else:
        os.write(_json_output, line.encode())


def write_text(text: str, file: Path | None, replace: bool) -> None:
    """Write a text to standard output or to a file; a file that exists is only replaced on request."""
    if file is None:
        sys.stdout.write(text)
        return
    try:
        with file.open("w" if replace else "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise UsageError(f"--output {file}: the file exists; give --force to replace it, or another name") from None
    except OSError as error:
        raise UsageError(f"--output {file}: {error.strerror}; give another file") from error


# How commands show their help, with any version of Typer.


class Command(TyperCommand):
    """A command whose help has paragraphs as wide as the terminal, and a usage line as manuals write it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help = filled(self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # a UsageError of Click, or of the copy that newer versions of Typer have
            extra = "unexpected extra argument" in (message := getattr(error, "message", ""))
            if extra and any(each.name == "plan" for each in self.params):
                error.message = f"{message}. A plan is an option: --plan ring"  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_in_usage, arguments)]


class Group(TyperGroup):
    """Commands under one name."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if ctx.parent is None and name not in self.commands and (familiar := FAMILIAR_COMMANDS.get(name)):
            raise UsageError(f"no such command {name!r}: that is {familiar}")
        if name not in self.commands and name.endswith((".py", ".toml")):
            raise UsageError(f"no such command {name!r}: to train it, paceline train {name}; to compare plans, compare")
        return super().resolve_command(ctx, args)


def filled(text: str) -> str:
    """Return a docstring with one line for each paragraph, to be wrapped by whatever shows it."""
    return "\n\n".join(" ".join(part.split("\n")) for part in inspect.cleandoc(text).split("\n\n"))


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Let flags show no value, since they take none."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


def _in_usage(argument: Any) -> str:
    """Return an argument as a usage line has it: `RUN`, `[JOB]`, `[PATH...]`."""
    name = argument.metavar + "..." * (argument.nargs != 1)
    return name if argument.required else f"[{name}]"
