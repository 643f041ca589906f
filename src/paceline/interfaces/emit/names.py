"""Names and words that other programs accept."""

from __future__ import annotations

import re
import shlex
import unicodedata
from pathlib import PurePosixPath

from paceline.errors import UsageError

#: What Kubernetes and KubeRay append to a name must still fit into 63 characters.
LONGEST_NAME = 47
JOB_FILES = (".py", ".toml")


def label(text: str) -> str:
    """Return the DNS-1035 label nearest to `text`: small letters, digits and hyphens, and a letter first."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if not words or words[0].isdigit():
        words = f"job-{words}"
    return words[:LONGEST_NAME].strip("-")


def job_name(job: str) -> str:
    """Return a name for a job: of `experiments/My net.py:big`, `my-net-big`."""
    path, _, variable = job.partition(":")
    stem = PurePosixPath(path).name.removesuffix(".py")
    return label(f"{stem}-{variable}" if variable else stem)


def namespace(text: str) -> str:
    """Return the name of a namespace as it was given, if it is one."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise UsageError(
            f"--namespace {text!r} is no name of a namespace: small letters, digits and hyphens, at most 63"
        )
    return text


def image(text: str) -> str:
    """Return the name of an image as it was given, if it can be one."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.:/@-]*", text, re.ASCII):
        raise UsageError(f"--image {text!r} is no name of an image, as in example.org/team/digits:1")
    return text


def partition(text: str) -> str:
    """Return the names of Slurm's partitions as they were given, if they can be some."""
    if not re.fullmatch(r"[\w.,-]+", text, re.ASCII):
        raise UsageError(f"--partition {text!r} is no name of a partition; several are separated by commas")
    return text


def time_limit(text: str) -> str:
    """Return a limit of time as it was given, if Slurm understands it."""
    if not re.fullmatch(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}", text, re.ASCII):
        raise UsageError(f"--time {text!r} is no limit of Slurm: give minutes, H:MM:SS or D-HH, as in 1:30:00 or 2-12")
    return text


def one_line(text: str, what: str, instead: str) -> str:
    """Return `text`, which a line of a file will contain, if it fits on a line."""
    if not text or not text.isprintable():
        raise UsageError(f"{what} {text!r} is empty or contains a line break or a control character; {instead}")
    return text


def printable(text: str, what: str) -> str:
    """Return `text`, which will be a word of a line, if it fits on a line and is no option."""
    if text.startswith("-"):
        raise UsageError(f"{what} {text!r} would be read as an option; write ./{text}")
    return one_line(text, what, "rename it")


def job_words(job: str, job_args: str | None) -> list[str]:
    """Return the words of a command that name a job, and its arguments if it has some."""
    words = [printable(job, "JOB")]
    if job_args is None:
        return words
    if not job.partition(":")[0].endswith(JOB_FILES):
        raise UsageError(f"--job-args is for Python files, and JOB {job} is a built-in job; leave --job-args out")
    try:
        shlex.split(one_line(job_args, "--job-args", "put it into a file that the job reads"))
    except ValueError as error:
        raise UsageError(
            f"--job-args {job_args!r}: {error}; quote it as in --job-args \"--name 'two words'\""
        ) from error
    return [*words, "--job-args", job_args]
