"""How commands show their help, with any version of Typer."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup


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
