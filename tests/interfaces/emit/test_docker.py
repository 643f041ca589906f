"""The Dockerfile, instruction by instruction."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.interfaces.emit.docker import PACKAGES, check_job, dockerfile, installed

VERSIONS = {name: f"{number}.0" for number, name in enumerate(("paceline", *PACKAGES, "ray"))} | {"torch": "2.13.0+cpu"}


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions with what follows them, without comments; lines that are continued are one."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in whole]


def test_each_instruction() -> None:
    found = instructions(dockerfile("nets/my job.py:big", VERSIONS, python="3.12"))
    names = [name for name, _ in found]
    assert names == ["FROM", "RUN", "RUN", "ARG", "RUN", "WORKDIR", "COPY", "USER", "ENV", "ENTRYPOINT", "CMD"]
    by_name = dict(found)
    assert by_name["FROM"] == "python:3.12-slim"
    assert by_name["USER"] == "1000"
    assert by_name["COPY"] == "--chown=1000:1000 . ."
    assert json.loads(by_name["ENTRYPOINT"]) == ["paceline"]
    assert json.loads(by_name["CMD"]) == ["train", "nets/my job.py:big"]


@pytest.mark.parametrize("job", ["nets/my job.py:big", "digits", "job.toml"])
def test_a_job_in_this_folder_or_a_built_in_one_is_taken(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    for name in ("nets/my job.py", "job.toml"):
        (tmp_path / name).touch()
    check_job(job)
    assert ("COPY" in dockerfile(job, VERSIONS)) == (job != "digits")


@pytest.mark.parametrize(
    ("job", "says"),
    [("nowhere.py", "there is no file nowhere.py here"), ("train.sh", "neither a Python nor"), ("a/b", "neither a")],
)
def test_a_file_that_does_not_exist_is_refused(
    job: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says):
        check_job(job)


def test_packages_are_those_of_here() -> None:
    text = dockerfile("digits", VERSIONS)
    installs = [rest for name, rest in instructions(text) if name == "RUN" and rest.startswith("pip install")]
    assert installs[0].endswith("torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu")
    assert {f"{name}=={VERSIONS[name]}" for name in PACKAGES if name != "torch"} <= set(installs[1].split())
    assert "torch==2.13.0" in installs[1].split()
    assert f"'ray[default]=={VERSIONS['ray']}'" in installs[1].split()
    assert f'ARG PACELINE="paceline[train,ray]=={VERSIONS["paceline"]}"' in text
    assert "COPY" not in [name for name, _ in instructions(text)]  # a built-in job needs no file


def test_without_ray_and_with_cuda() -> None:
    without = {name: version for name, version in VERSIONS.items() if name != "ray"}
    text = dockerfile("digits", without, roster="environment", cuda=True)
    assert "ray" not in re.sub(r"#.*|array", "", text)
    assert "--index-url" not in text


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"python": "3.9"}, "--python '3.9': give a version from 3.10"),
        ({"python": "three"}, "as in 3.11"),
        ({"roster": "mpi"}, "--roster 'mpi'"),
        ({"job": "../net.py"}, "JOB ../net.py lies outside the folder"),
        ({"job": "/a/net.py"}, "JOB /a/net.py lies outside the folder"),
        ({"job": 'a\nUSER root\n"'}, "contains a line break"),
        ({"versions": {"paceline": "1", **dict.fromkeys(PACKAGES, "1")}}, "ray: not installed here"),
    ],
)
def test_what_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as error:
        dockerfile(**({"job": "net.py", "versions": VERSIONS} | given))  # type: ignore[arg-type]
    assert says in str(error.value)


def test_versions_are_found_without_importing_the_packages() -> None:
    found = installed()
    assert {"paceline", "torch", "numpy"} <= set(found)
    assert all(version[0].isdigit() for version in found.values())
