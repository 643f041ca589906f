"""The batch script: what sbatch reads of it, and what it does when it runs."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline.algorithms.cluster.launchers import from_environment
from paceline.errors import UsageError
from paceline.interfaces.emit.slurm import batch_script
from paceline.interfaces.emit.training import ROSTERS, training
from paceline.runtime.runs.record import Status
from tests.interfaces.emit.conftest import Stage

GOLDEN = Path(__file__).parent / "golden"
JOB = {"SLURM_JOB_ID": "1042", "SLURM_JOB_NODELIST": "node[7,9]"}
#: What Slurm sets for each task of srun.
TASK = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "node[7,9]"}
ODD = 'a b/it\'s "$HOME" `x` $(y) \\ *;&|é.py:big'


def script(roster: str, job: str = "job.py", plan: str = "ring:workers=2", **more: Any) -> str:
    return batch_script(training(job, plan, roster=roster, **more))


@pytest.mark.parametrize("roster", ROSTERS)
def test_a_script_as_a_whole(roster: str) -> None:
    """After a change that is meant, write the new text into the file."""
    chosen = training("job.py", "ring", 4, gpus=1, memory=16, roster=roster)
    assert batch_script(chosen, "1:00:00", "gpu") == (GOLDEN / f"slurm-{roster}.sh").read_text()


@pytest.mark.parametrize("roster", ROSTERS)
@pytest.mark.parametrize(("job", "plan"), [("job.py", "downpour"), (ODD, "ring"), ("digits", "local_sgd:every=4")])
def test_shells_accept_it(roster: str, job: str, plan: str) -> None:
    text = script(roster, job, plan)
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    if found := shutil.which("shellcheck"):
        checked = subprocess.run([found, "-S", "warning", "-"], input=text, capture_output=True, text=True)
        assert checked.stdout == ""


def test_options_come_before_the_first_command() -> None:
    """Sbatch stops reading them there."""
    lines = script("ray").splitlines()
    assert lines[0] == "#!/bin/bash"
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert sum(line.startswith("#SBATCH --") for line in lines[:first]) == sum("#SBATCH" in line for line in lines) > 8


@pytest.mark.parametrize("options", [{"time": "1h"}, {"partition": "a b"}])
def test_what_sbatch_would_refuse(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        batch_script(training("job.py", "ring"), **options)


@pytest.mark.parametrize("roster", ROSTERS)
@pytest.mark.parametrize("job", ["job.py", ODD])
def test_a_job_begins_a_run(stage: Stage, roster: str, job: str) -> None:
    status, printed = stage.run("bash", script(roster, job), **JOB)
    assert status == 0, printed
    ray = ["--engine", "ray", "--address", "auto"] if roster == "ray" else []
    runs = str(stage.folder / "runs" / "slurm-1042")
    begin = ["--plan", "ring:workers=2", "--checkpoint-every", "60s", "--runs", runs]
    assert stage.words("paceline") == ["train", job, *ray, *begin]
    assert stage.words("scontrol") == ["show", "hostnames", "node[7,9]"]


@pytest.mark.parametrize("roster", ROSTERS)
def test_a_job_in_the_queue_again_resumes_the_newest_run(stage: Stage, roster: str) -> None:
    newest, *_ = [
        stage.left("runs/slurm-1042", Status.FAILED, f"{begun}-job-ring")
        for begun in ("20260101-000000", "20251231-235959", "20250101-000000")
    ]
    (stage.folder / "runs/slurm-1042/20270101-000000-job-ring").mkdir()  # killed before it wrote its record
    status, printed = stage.run("bash", script(roster), **JOB)
    assert status == 0, printed
    assert stage.words("paceline")[-2:] == ["--resume", str(newest)]
    assert "--plan" not in stage.words("paceline")


@pytest.mark.parametrize("roster", ROSTERS)
def test_a_run_that_is_done_is_left_alone(stage: Stage, roster: str) -> None:
    path = stage.left("runs/slurm-1042", Status.DONE)
    assert stage.run("bash", script(roster), **JOB) == (0, f"{path} is done\n")
    assert stage.words("paceline") == []


@pytest.mark.parametrize("roster", ROSTERS)
def test_the_run_of_another_job_goes_on(stage: Stage, roster: str) -> None:
    path = stage.left("kept here", Status.STOPPED)
    status, printed = stage.run("bash", script(roster), **JOB, PACELINE_RUNS="kept here")
    assert status == 0, printed
    assert stage.words("paceline")[-2:] == ["--resume", str(path)]


@pytest.mark.parametrize("roster", ROSTERS)
def test_a_failure_is_the_jobs_and_says_how_to_go_on(stage: Stage, roster: str) -> None:
    (stage.calls / "status").write_text("3")
    status, printed = stage.run("bash", script(roster), **JOB)
    assert status == 3
    assert f"PACELINE_RUNS={stage.folder}/runs/slurm-1042 sbatch FILE" in printed


def test_each_task_finds_its_rank_and_the_head(stage: Stage) -> None:
    status, printed = stage.run("bash", script("environment"), **JOB, **TASK)
    assert status == 0, printed
    environ = dict(line.split("=", 1) for line in (stage.calls / "environment").read_text().splitlines() if "=" in line)
    launched = from_environment(environ)
    assert launched is not None
    assert (launched.launcher, launched.rank, launched.nodes) == ("srun", 1, 2)
    assert launched.head == ("node7", 29471 + 1042 % 1000)
    assert environ["PACELINE_KEYS"] == f"{stage.folder}/.paceline/keys"
    assert {"--mpi=none", "--no-kill", "--kill-on-bad-exit=0", "--cpus-per-task=1"} <= set(stage.words("srun"))


def test_ray_gets_a_cluster_of_this_job_with_a_token(stage: Stage) -> None:
    status, printed = stage.run("bash", script("ray", plan="ring:workers=4", nodes=2, gpus=3), **JOB)
    assert status == 0, printed
    words = stage.words("ray")[: stage.words("ray").index("--")]
    assert words[:5] == ["symmetric-run", "--address", "node7:6421", "--min-nodes", "2"]
    assert words[5:] == ["--num-cpus=2", "--num-gpus=3"]
    token = stage.folder / "runs/slurm-1042/.ray-token"
    environment = (stage.calls / "environment").read_text()
    assert f"RAY_AUTH_TOKEN_PATH={token}\n" in environment
    assert "RAY_AUTH_MODE=token\n" in environment
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text().strip()) == 64


def test_a_ray_that_did_not_start_is_a_failure(stage: Stage) -> None:
    """`ray symmetric-run` ends with 0 then."""
    (stage.calls / "ray_fails").touch()
    status, printed = stage.run("bash", script("ray"), **JOB)
    assert status == 1
    assert "Ray did not start on the first node" in printed


def test_the_signal_before_the_time_limit_reaches_the_training_alone(stage: Stage) -> None:
    """Slurm sends it to the script; the training writes a checkpoint, and ends with 143."""
    (stage.calls / "waits").touch()
    process = stage.start("bash", script("ray"), **JOB)
    stage.until((stage.calls / "ready").exists, process)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 143, printed
    assert "The training ended with 143" in printed
