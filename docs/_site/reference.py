"""The reference, written from the code: docstrings, signatures, the commands' own help, the table of plans."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import typer

import paceline
from paceline.concurrency.check.rules import RULES, section
from paceline.errors.remedies import errors as error_kinds
from paceline.errors.remedies import remedies
from paceline.interfaces.cli import app, register

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The names of `import paceline` by task; every name is in one group.
GROUPS = {
    "Train and compare": (
        "Job", "Plan", "train", "compare", "parallel", "Run", "replay", "verify", "Progress", "World", "NodeOptions",
        "ThroughTime",
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
    lines: list[str] = []
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
    lines: list[str] = []
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
    table = tomllib.loads(
        (Path(__file__).parents[2] / "tests" / "interfaces" / "cli" / "wrong_inputs.toml").read_text()
    )
    lines = ["| typed | exit code | message |", "|---|---|---|"]
    for row in table["input"]:
        name = row["typed"].split()[-1].removesuffix(".py")
        typed = f"`{row['typed']}`" + (f" with `{line}`" if (line := table["mistakes"].get(name)) else "")
        lines.append(
            f"| {typed} | {row['exit']} | {row['says'].replace('|', chr(92) + '|').replace('*', chr(92) + '*')} |"
        )
    return "\n".join([*lines, ""])


KINDS = error_kinds()
#: The groups of errors, in this order; each error is in the table of one.
GROUPED = ("UsageError", "RunFailed", "RunStopped", "TrialStopped", "ReplayDiverged", "ProtocolError")


def errors() -> str:
    """Every exception and warning, in its group, with what to do."""
    lines: list[str] = []
    for group in (KINDS[name] for name in GROUPED):
        lines += [f"### {group.__name__}", "", *_table_of([k for k in KINDS.values() if issubclass(k, group)])]
    return "\n".join([*lines, "### Warnings", "", *_table_of([k for k in KINDS.values() if issubclass(k, Warning)])])


def _table_of(members: list[type[BaseException]]) -> list[str]:
    rows = [
        f"| `{each.__name__}` | {(inspect.getdoc(each) or '').splitlines()[0]} | {' '.join(remedies(each))} |"
        for each in members
    ]
    return ["| class | meaning | what to do |", "|---|---|---|", *rows, ""]


def rules() -> str:
    """A table of the checker's rules; each has a page."""
    rows = [f"| [{rule.code}](rules/{rule.code}.md) | {rule.name} | {rule.summary} |" for rule in RULES.values()]
    return "\n".join(["| rule | name | finds |", "|---|---|---|", *rows])


def rule_pages() -> dict[str, str]:
    """A page for each rule of the checker, as `paceline check --explain` prints it."""
    return {f"reference/rules/{code}.md": section(rule)[2:] for code, rule in RULES.items()}


PARTS = {"python": python, "commands": commands, "errors": errors, "messages": messages, "rules": rules}
