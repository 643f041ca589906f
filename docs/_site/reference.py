"""The reference, written from the code: docstrings, signatures, the commands' own help, the table of plans."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import tomllib
import typer

import paceline
from paceline import errors as paceline_errors
from paceline.cli import app, register
from paceline.errors import PacelineError
from paceline.plans.plan import RECIPES

#: The names of `import paceline` by task; every name is in one group.
GROUPS = {
    "Train and compare": (
        "Job", "Plan", "train", "compare", "parallel", "Run", "replay", "Progress", "World", "ThroughTime",
    ),
    "While it runs": ("Callback", "EarlyStopping", "BestCheckpoint", "ProgressBar"),
    "Predict and choose": ("calibrate", "choose", "validate", "simulate"),
    "After training": ("load_run", "compress"),
    "Tune": ("tune", "Space", "Float", "Int", "Choice", "Trial"),
    "Data": (
        "Shards", "Mix", "Stream", "prepare", "ingest", "Recipe", "Words", "Csv", "JsonLines", "Lines", "Parquet",
        "Arrow", "Images", "Idx",
    ),
    "Errors": ("PacelineError", "UsageError", "RunFailed", "RunStopped", "ReplayDiverged"),
}  # fmt: skip


def python() -> str:
    """The names of `import paceline`; mkdocstrings fills in signatures and docstrings."""
    lines = ["# Python", "", "`import paceline` does not import PyTorch until something that needs it is used.", ""]
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(paceline._FACE), set(grouped) ^ set(paceline._FACE)
    for group, names in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in names:
            lines += [f"### paceline.{name}", "", f"::: {paceline._FACE[name]}.{name}", ""]
    return "\n".join(lines)


def commands() -> str:
    """Every command with its arguments and options."""
    register()
    group: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        group.help or "",
        "",
        "[The command line](../command-line.md#exit-codes) lists the exit codes.",
        "",
    ]
    for name, command in sorted(_commands(group)):
        lines += [f"## paceline {name}", "", inspect.cleandoc(command.help or ""), "", "| | | |", "|---|---|---|"]
        for parameter in command.params:
            words = " ".join(f"`{word}`" for word in parameter.opts) if parameter.param_type_name == "option" else ""
            shown = words or f"`{(parameter.metavar or parameter.name).upper()}`"
            given = parameter.default
            usual = "" if given in (None, False) or callable(given) or given == [] else f"`{given}`"
            lines.append(
                f"| {shown} | {(getattr(parameter, 'help', '') or '').replace('|', chr(92) + '|')} | {usual} |"
            )
        lines.append("")
    return "\n".join(lines)


def _commands(group: Any, before: str = "") -> list[tuple[str, Any]]:
    """The commands of a group with their names; of a group in it, its commands."""
    found = []
    for name, command in group.commands.items():
        inner = hasattr(command, "commands")
        found += _commands(command, f"{before}{name} ") if inner else [(f"{before}{name}", command)]
    return found


def messages() -> str:
    """What people type by mistake, with the exit code and the message."""
    table = tomllib.loads((Path(__file__).parents[2] / "tests" / "cli" / "wrong_inputs.toml").read_text())
    lines = [
        "# Messages after wrong input",
        "",
        "Each row is typed by the tests. [Exit code](../command-line.md#exit-codes) 2 means that nothing was started.",
        "What goes wrong in a run that has started is in [what goes wrong](../failures.md).",
        "",
        "| typed | exit code | message |",
        "|---|---|---|",
    ]
    for row in table["input"]:
        name = row["typed"].split()[-1].removesuffix(".py")
        typed = f"`{row['typed']}`" + (f" with `{line}`" if (line := table["mistakes"].get(name)) else "")
        lines.append(
            f"| {typed} | {row['exit']} | {row['says'].replace('|', chr(92) + '|').replace('*', chr(92) + '*')} |"
        )
    return "\n".join([*lines, ""])


#: What to do about each group of errors.
REMEDIES = {
    "UsageError": "Nothing was started. The message names the option or the field, what is allowed and what to write.",
    "RunFailed": "The run has begun and did not finish; its folder says where. `paceline replay RUN --until failure` "
    "returns there, and `--resume RUN` continues from a checkpoint.",
    "RunStopped": "A signal asked for it, and a checkpoint was written: continue with `--resume RUN`.",
    "TrialStopped": "Let the exception through: it ends a trial in the way that the search asked for.",
    "ReplayDiverged": "The data, the model or the arithmetic differ from those of the record; the message says which.",
    "ProtocolError": "This is a bug in Paceline: report it with the message and the run's folder.",
}


def errors() -> str:
    """Every exception and warning, in its group, with what to do."""
    found = {name: each for name, each in vars(paceline_errors).items() if isinstance(each, type)}
    kinds = {name: each for name, each in found.items() if issubclass(each, PacelineError | Warning)}
    lines = [
        "# Errors and warnings",
        "",
        "All exceptions that Paceline raises on purpose derive from `paceline.errors.PacelineError`. The groups are",
        "also names of `paceline`. [What goes wrong](../failures.md) shows the messages of failures, and",
        "[messages after wrong input](messages.md) those of mistakes.",
        "",
    ]
    for group in (kinds[name] for name in REMEDIES):
        members = [each for each in kinds.values() if issubclass(each, group)]
        lines += [f"## {group.__name__}", "", REMEDIES[group.__name__], "", *_table_of(members)]
    return "\n".join([*lines, "## Warnings", "", *_table_of([k for k in kinds.values() if issubclass(k, Warning)])])


def _table_of(members: list[type]) -> list[str]:
    rows = [f"| `{each.__name__}` | {(inspect.getdoc(each) or '').splitlines()[0]} |" for each in members]
    return ["| class | meaning |", "|---|---|", *rows, ""]


def plans() -> str:
    """Every plan with its options."""
    lines = [
        "# Plans",
        "",
        "`name:option=value,option=value`, as in `downpour:workers=4,shards=2`. What each is good for:",
        "[which method when](../methods.md).",
        "",
        "| plan | options and their defaults | |",
        "|---|---|---|",
    ]
    for name, recipe in RECIPES.items():
        options = ", ".join(f"`{key}={told(kind)}`" for key, kind in recipe.options.items())
        lines.append(f"| `{name}` | {options} | {recipe.about} |")
    return "\n".join([*lines, ""])


def told(kind: Any) -> str:
    return "the method's own" if kind.default is None else str(kind.default)
