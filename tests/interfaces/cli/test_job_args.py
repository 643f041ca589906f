"""Every command that takes a user's job file passes it its arguments."""

from __future__ import annotations

import click
import pytest
from typer.main import get_command

import paceline.interfaces.cli
from paceline.errors import JobError
from tests.interfaces.cli.conftest import Command

#: What some of them need besides.
FURTHER = {"tune": ["--search", "random"], "draw": ["gpipe"], "emit slurm": ["--plan", "ring"]}
FURTHER["emit kubernetes"] = FURTHER["emit slurm"]


def _with_jobs() -> dict[str, list[str]]:
    """Return the commands that take a job, and the words that name one."""
    paceline.interfaces.cli.register()

    def below(name: str, command: click.Command) -> dict[str, click.Command]:
        inner = getattr(command, "commands", {})
        return {k: v for each in inner for k, v in below(f"{name} {each}".strip(), inner[each]).items()} or {
            name: command
        }

    found = {}
    for name, command in below("", get_command(paceline.interfaces.cli.app)).items():
        for each in command.params:
            if each.metavar in ("JOB", "[JOB]"):
                found[name] = ["--job", "job.py"] if each.param_type_name == "option" else ["job.py"]
    return found


JOBS = _with_jobs()


def test_which_commands_take_a_job() -> None:
    assert set(JOBS) == {
        "train",
        "compare",
        "choose",
        "validate",
        "simulate",
        "tune",
        "draw",
        "emit slurm",
        "emit kubernetes",
        "emit docker",
    }


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_job_has_its_arguments(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []

    def load_maker(where: str, data_dir: object = None, job_args: object = None, by_defaults: bool = False) -> None:
        loaded.append((where, job_args))
        raise JobError("enough is known")

    monkeypatch.setattr("paceline.training.jobs.loading.load_maker", load_maker)
    monkeypatch.setattr("paceline.interfaces.api.tuning.setup.load_maker", load_maker)
    done = command(*name.split(), *FURTHER.get(name, []), *JOBS[name], "--job-args", "--width '7 8'")
    if name.startswith("emit"):
        assert done.code == 0, done.err
        text = done.out.replace("'\"'\"'", "'").replace('", "', "' '")
        assert "job.py --job-args '--width '7 8'' --" in text or "job.py' '--job-args' '--width '7 8'\"" in text
    else:
        assert (loaded, done.code) == ([("job.py", "--width '7 8'")], 2), done.err


def test_arguments_without_a_file_are_refused(command: Command) -> None:
    for words, says in (
        (["emit", "docker", "digits", "--job-args", "-x"], "digits is a built-in job"),
        (["emit", "docker", "job.py", "--job-args", "'a"], "No closing quotation"),
        (["emit", "docker", "job.py", "--job-args", "a\nRUN x"], "contains a line break"),
        (["draw", "gpipe", "--job-args", "-x"], "no JOB is given"),
    ):
        done = command(*words)
        assert (done.code, says in done.err) == (2, True), done.err
