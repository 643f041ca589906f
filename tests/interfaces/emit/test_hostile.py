"""Whatever a job and its arguments are called, a file holds no more of it than their words."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import suppress

import pytest
import yaml

from paceline.errors import UsageError
from paceline.interfaces.emit.docker import dockerfile
from paceline.interfaces.emit.kubernetes import manifest
from paceline.interfaces.emit.slurm import batch_script
from paceline.interfaces.emit.training import training
from tests.interfaces.emit.test_docker import VERSIONS, instructions
from tests.test_names import HOSTILE

NAMES = [*HOSTILE, "x\n#SBATCH --wrap=id", "x\nRUN id", "---\nkind: Pod", "x'; id; '", "${HOME}", "!", "--resume=/x"]


def accepted(write: Callable[[str, str | None], str]) -> dict[tuple[str, str | None], str]:
    """Return the files of all names as a job and as its arguments that are not refused, for a stated reason."""
    files = {}
    for name in NAMES:
        for job, arguments in ((f"{name}.py", None), (f"{name}.py:{name}", None), ("job.py", name)):
            with suppress(UsageError):
                files[job, arguments] = write(job, arguments)
    assert len(files) > 12
    return files


def words(job: str, arguments: str | None) -> list[str]:
    return ["train", job, *([] if arguments is None else ["--job-args", arguments])]


@pytest.mark.parametrize("roster", ["ray", "environment"])
def test_a_shell_reads_the_words(roster: str) -> None:
    files = accepted(lambda job, arguments: batch_script(training(job, "ring", roster=roster, job_args=arguments)))
    script = ""
    for (job, arguments), text in files.items():
        (line,) = re.findall(r"^set -- paceline .*$", text, re.MULTILINE)
        script += f"{line}\nprintf '%s\\0' \"$@\" END\n"
        assert text.count("#SBATCH") == batch_script(training("job.py", "ring", roster=roster)).count("#SBATCH")
        in_manifest = manifest(training(job, "ring", roster=roster, job_args=arguments), "x:1")
        found = list(yaml.safe_load_all(in_manifest))
        if roster == "ray":
            assert [each["kind"] for each in found] == ["PersistentVolumeClaim", "ConfigMap", "RayJob"]
            assert line in found[1]["data"]["train.sh"]
        else:
            assert [each["kind"] for each in found] == ["Service", "StatefulSet"]
            assert line in found[1]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    done = subprocess.run(["bash", "-eu"], input=script.encode(), capture_output=True, check=True)
    ray = ["--engine", "ray", "--address", "auto"] if roster == "ray" else []
    read = [part.split("\0")[:-1] for part in done.stdout.decode().split("END\0")[:-1]]
    assert read == [["paceline", *words(*of), *ray] for of in files]


def test_docker_reads_the_words() -> None:
    usual = len(dockerfile("job.py", VERSIONS).splitlines())
    for of, text in accepted(lambda job, arguments: dockerfile(job, VERSIONS, job_args=arguments)).items():
        assert len(text.splitlines()) == usual
        assert json.loads(dict(instructions(text))["CMD"]) == words(*of)
        (said,) = re.findall(r"^#     docker run .*/runs\" \S+ (.*)$", text, re.MULTILINE)
        assert shlex.split(said) == [*words(*of), "--plan", "ring", "--workers", "2"]
