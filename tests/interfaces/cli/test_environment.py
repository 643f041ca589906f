"""Environment variables: a wrong value is refused by name, and a misspelt name is not passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.__main__ import SPINS, limit_spinning
from paceline.errors import UsageError
from paceline.interfaces.cli.environment import VARIABLES, check_environment
from tests.interfaces.cli.conftest import Command


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PACELINE_WORKER", "3", "there is no environment variable PACELINE_WORKER; it is PACELINE_WORKERS"),
        ("PACELINE_TIMOUT", "3", "it is PACELINE_TIMEOUT"),
        ("PACELINE_KEYS", "/nowhere", "PACELINE_KEYS='/nowhere' is not a folder"),
        ("PACELINE_DATA", "/nowhere", "PACELINE_DATA='/nowhere' is not a folder"),
        ("PACELINE_NODES", "two", "PACELINE_NODES='two' is not a whole number"),
        ("PACELINE_RANK", "-1", "PACELINE_RANK='-1' is not a whole number"),
        ("PACELINE_HEAD", "node:port", "PACELINE_HEAD is set, but neither a launcher nor"),
        ("PACELINE_PLAN", "rng", "there is no plan 'rng'"),
        ("PACELINE_WORKERS", "two", "(env var: 'PACELINE_WORKERS')"),
        ("PACELINE_TIMEOUT", "soon", "(env var: 'PACELINE_TIMEOUT')"),
        ("PACELINE_ENGINE", "lokal", "there is no engine 'lokal'; did you mean 'local'?"),
        ("PACELINE_DEVICE", "gpu", "device='gpu' is no device"),
        ("PACELINE_RUNS", "/proc/none", "/proc/none/"),
        ("WORLD_SIZE", "two", "WORLD_SIZE='two' is not a whole number"),
    ],
)
def test_nonsense_is_refused_with_the_variables_name(
    name: str, value: str, says: str, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    done = command("train", "digits", "--max-updates", "1")
    said = " ".join(done.err.replace("│", " ").split())
    assert (done.code, says in said) == (2, True), said


def test_a_folder_without_the_files_of_a_job_is_refused(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_DATA", str(folder))
    done = command("train", "mnist-cnn", "--max-updates", "1")
    assert (done.code, f"PACELINE_DATA={folder} holds no train-images-idx3-ubyte" in done.err) == (2, True), done.err


def test_a_wrong_number_of_ranks_is_refused_where_it_is_read(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "two")
    (folder / "space.toml").write_text("lr = {low = 0.01, high = 0.1}")
    done = command("tune", "digits", "--space", "space.toml", "--n-trials", "1")
    assert (done.code, "LOCAL_WORLD_SIZE='two' is not a whole number" in done.err) == (2, True), done.err


def test_right_variables_and_those_of_other_programs_pass(tmp_path: Path) -> None:
    check_environment(dict.fromkeys(VARIABLES, str(tmp_path)))
    check_environment({"PACELINE_PORT_443_TCP": "1", "PACELINE_SERVICE_HOST": "10.0.0.1", "PACELINE_STAND_IN": "x"})
    with pytest.raises(UsageError, match="it is PACELINE_KEYS"):
        check_environment({"PACELINE_KEY": str(tmp_path)})


@pytest.mark.parametrize("chosen", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_a_command_limits_spinning_unless_its_user_chose(chosen: dict[str, str]) -> None:
    environment = dict(chosen)
    limit_spinning(environment)
    assert environment == (chosen or {"GOMP_SPINCOUNT": str(SPINS)})
