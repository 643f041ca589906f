"""Every error has remedies, and `paceline explain` prints them, or the section of a rule of the checker."""

from __future__ import annotations

import pytest

from paceline.errors import UsageError
from paceline.errors.remedies import REMEDIES, errors, explain_error, remedies
from tests.interfaces.cli.conftest import Command


@pytest.mark.parametrize("name", errors())
def test_an_error_says_what_it_means_and_what_to_do(name: str) -> None:
    assert name == "PacelineError" or remedies(errors()[name]), f"{name} has no remedy"
    assert explain_error(name.lower()).startswith(f"# {name}\n")


def test_a_remedy_is_of_an_error_that_exists() -> None:
    assert set(REMEDIES) - {"Warning"} <= set(errors())


def test_explain_prints_an_error_or_a_rule(command: Command) -> None:
    assert "1. Read the traceback" in command("explain", "workerfailed").out
    assert "### PC404" in command("explain", "PC404").out
    assert "### PC101" in command("explain", "lock-order").out


@pytest.mark.parametrize(("name", "hint"), [("WorkerFaild", "WorkerFailed"), ("PC999", "PC")])
def test_an_unknown_name_is_suggested(command: Command, name: str, hint: str) -> None:
    done = command("explain", name)
    assert done.code == UsageError.exit_code
    assert hint in done.err
