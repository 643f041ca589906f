"""The help of every command."""

from __future__ import annotations

import re

import pytest

from paceline.interfaces.cli import COMMANDS
from paceline.interfaces.cli.terminal import filled
from tests.interfaces.cli.conftest import Command

NAMES = [name for names in COMMANDS.values() for name in names]


@pytest.mark.parametrize("name", [*NAMES, "emit slurm"])
def test_help_fits_the_terminal(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = command(*name.split(), "--help")
    assert said.code == 0
    usage = re.search(r"Usage: (.*)", said.out)
    assert usage is not None
    assert re.fullmatch(
        rf"paceline {name} \[OPTIONS\]( [A-Z|]+(\.\.\.)?| \[[-A-Z ]+(\.\.\.)?\]| COMMAND \[ARGS\]\.\.\.)*",
        usage[1].strip(),
    )
    assert max(map(len, said.out.splitlines())) <= 80
    assert "bool" not in said.out, "a flag takes no value"


def test_usage_says_what_may_be_left_out(command: Command) -> None:
    for name, usage in (
        ("train", "[JOB]"),
        ("report", "RUN..."),
        ("ingest", "RECIPE [INPUT...]"),
        ("draw", "PLAN|RUN"),
    ):
        assert f"paceline {name} [OPTIONS] {usage}" in command(name, "--help").out


def test_lines_of_a_paragraph_are_joined() -> None:
    assert filled("One.\n\n    Two\n    lines.\n\n    Three.\n") == "One.\n\nTwo lines.\n\nThree."
