"""A Dockerfile whose image trains a job, on one machine or as a node of many."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from paceline.errors import UsageError, suggest
from paceline.interfaces.emit.kubernetes import USER, WORK
from paceline.interfaces.emit.training import JOB_FILES, ROSTERS, job_name, job_words

#: The oldest Python that Paceline runs on.
OLDEST = (3, 10)
#: What training needs, as the extra `train` has it; and for the roster `ray`, which submits jobs through the dashboard.
PACKAGES = ("torch", "numpy", "pyarrow", "cloudpickle", "safetensors", "scikit-learn", "typer", "rich")
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
IGNORED = (".git", ".venv", "**/__pycache__", "runs", "report.html", "keys", "*.pem", "*.key")


def dockerfile(
    job: str,
    versions: Mapping[str, str],
    *,
    python: str = "3.11",
    roster: str = "ray",
    cuda: bool = False,
    job_args: str | None = None,
) -> str:
    """Return the Dockerfile; `versions` are those of paceline and the packages it needs, by their names."""
    if roster not in ROSTERS:
        raise UsageError(f"--roster {roster!r}: {suggest(roster, ROSTERS)}")
    _check_python(python)
    name, trains = job_name(job), ["train", *job_words(job, job_args)]
    lines = [
        "# syntax=docker/dockerfile:1",
        f"# Trains {job}; made for the folder that contains it.",
        f"#     docker build -t {name} .",
        f'#     docker run --rm -v "$PWD/runs:{WORK}/runs" {name} {shlex.join(trains)} --plan ring --workers 2',
        f"# The folder `runs` must belong to user {USER}. Put what the image must not contain into .dockerignore:",
        f"#     {'  '.join(IGNORED)}",
        f"FROM python:{python}-slim",
        "",
        f"RUN useradd --uid {USER} --create-home trainer \\",
        f"    && mkdir -p {WORK}/runs /runs && chown -R {USER}:{USER} {WORK} /runs",
        "",
        *_packages(versions, roster, cuda),
        "",
        f"WORKDIR {WORK}",
        *_files(job),
        f"USER {USER}",
        "ENV PYTHONUNBUFFERED=1",
        "# No shell in between: SIGTERM reaches Paceline, which writes a checkpoint and ends.",
        'ENTRYPOINT ["paceline"]',
        f"CMD {json.dumps(trains, ensure_ascii=False)}",
    ]
    return "\n".join(lines) + "\n"


def check_job(job: str) -> None:
    """Raise unless the job is a file below this folder, which the image gets, or a word, as a built-in job is."""
    path = Path(job.partition(":")[0])
    if path.suffix not in JOB_FILES and (path.suffix or len(path.parts) > 1):
        raise UsageError(f"JOB {path} is neither a Python nor a TOML file, nor a built-in job such as digits")
    if path.suffix in JOB_FILES and not path.is_file():
        raise UsageError(
            f"there is no file {path} here; call this in the folder that the image is built from, and name JOB from "
            "there, or give a built-in job, as in digits"
        )


def _check_python(python: str) -> None:
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", python, re.ASCII)
    if not match or not OLDEST <= (int(match[1]), int(match[2])) < (4, 0):
        raise UsageError(f"--python {python!r}: give a version from {OLDEST[0]}.{OLDEST[1]}, as in 3.11")


def _packages(versions: Mapping[str, str], roster: str, cuda: bool) -> list[str]:
    """Return the lines that install the same versions as here; PyTorch comes first, since it changes least."""
    names = [*PACKAGES, *(["ray"] if roster == "ray" else [])]
    if missing := [name for name in ("paceline", *names) if name not in versions]:
        other = "; or give --roster environment" if missing == ["ray"] else ""
        raise UsageError(
            f"{', '.join(missing)}: not installed here, so there is no version to name; install them{other}"
        )
    # A wheel for CPUs is called 2.13.0+cpu, and satisfies 2.13.0.
    pinned = {name: versions[name].partition("+")[0] for name in ("paceline", *names)}
    extras = "train,ray" if roster == "ray" else "train"
    words = [f"{'ray[default]' if name == 'ray' else name}=={pinned[name]}" for name in names]
    index = "" if cuda else f" --index-url {CPU_WHEELS}"
    return [
        f"RUN pip install --no-cache-dir torch=={pinned['torch']}{index}",
        "# Another source, such as a wheel's address: docker build --build-arg PACELINE=...",
        f'ARG PACELINE="paceline[{extras}]=={pinned["paceline"]}"',
        'RUN pip install --no-cache-dir "$PACELINE" \\',
        *(f"    {shlex.quote(word)} \\" for word in words[:-1]),
        f"    {shlex.quote(words[-1])}",
    ]


def _files(job: str) -> list[str]:
    """Return the line that copies the job's folder, unless the job is a built-in one."""
    path = job.partition(":")[0]
    if not path.endswith(JOB_FILES):
        return []
    file = PurePosixPath(path)
    if file.is_absolute() or ".." in file.parts:
        raise UsageError(
            f"JOB {path} lies outside the folder that `docker build` gets; go to a folder above it, and name JOB from "
            "there"
        )
    return [f"COPY --chown={USER}:{USER} . ."]


# The versions of installed packages, which images must have, too.


def installed() -> dict[str, str]:
    """Return the version of Paceline and of every package that an image needs, as far as they are installed."""
    versions: dict[str, str] = {}
    for name in ("paceline", *PACKAGES, "ray"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
