"""Wrong use is one clear block on standard error, exit code 2, and no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.interfaces.testing.leaks import nothing_left_behind
from tests.interfaces.cli.conftest import Command


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_behind(_own_temporary_folder: None) -> Iterator[None]:
    """No command here gets as far as starting anything: one look for all of them is enough."""
    with nothing_left_behind():
        yield


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "job.py", "--plan", "rign"], "did you mean 'ring'"),
        (["train", "job.py", "ring"], "A plan is an option: --plan ring"),
        (["train", "job.py", "--learning_rate", "0.1"], "the learning rate is the optimizer's"),
        (["train", "nothing.py"], "there is no file nothing.py"),
        (["train", "digit"], "did you mean 'digits'"),
        (["train", "job.py:jub"], "it has job, other"),
        (["train", "job.py", "--engine", "cloud"], "there is no engine 'cloud'"),
        (["train", "job.py", "--workers", "0"], "workers"),
        (["train", "job.py", "--device", "gpu3"], "device='gpu3' is no device"),
        (["train", "broken.py"], "line 2"),
        (["train", "--resume", "runs/x", "--seed", "1"], "--seed changes a job, but no JOB is given"),
        (["replay", "."], "no run.json"),
        (["replay", "nowhere"], "there is no folder nowhere"),
        (["report", "."], "contains no run folder"),
        (["report", ".", "--format", "htm"], "did you mean 'html'"),
        (["draw", "rign"], "did you mean 'ring'"),
        (["draw", "ring", "-w", "40"], "draw at most 26"),
        (["draw", "runs/none"], "neither a plan nor a run's folder"),
        (["draw", "gpipe", "--page", "nowhere/page.html"], "--page nowhere/page.html: nowhere does not exist"),
        (["draw", "ring", "--job", "digits"], "under plan ring each has all of it"),
        (["replay", "run", "--save", "."], "--save .: it is a folder"),
        (["check", ".", "--write-baseline", "nowhere/known"], "nowhere does not exist or is not writable"),
        (["bench", "kernels", "--parts", "study", "--picture", "roof.svg"], "draws the steps of part layers"),
        (["bench", "kernels", "--threads", "1,none"], "positive whole numbers separated by commas"),
        (["draw", "layers:on=0+1+2"], "or give workers=3"),
        (["prove", "hierarchical", "-w", "3"], "do not make 2 equal groups"),
        (["prove", "ssp:bound=-1"], "at least 0"),
        (["keys", "/dev/null/keys"], "keys cannot be written to /dev/null/keys"),
        (["keys", "keys", "--hosts", "a,b/c"], "'b/c' is no name or address of a host"),
        (["emit", "slurm", "job.py"], "Missing option"),
        (["emit", "slurm", "job.py", "--plan", "rign"], "did you mean 'ring'"),
        (["emit", "slurm", "job.py", "--plan", "ring", "--workers", "0"], "workers"),
        (["emit", "slurm", "job.py", "--plan", "ring", "--output", "job.py"], "give --force to replace it"),
        (["emit", "kubernetes", "job.py", "--plan", "gpipe"], "does not run on a cluster"),
        (["emit", "docker", "../job.py"], "lies outside the folder"),
        (["fly"], "No such command"),
        (["run", "digits"], "that is paceline train JOB"),
        (["job.py"], "paceline train job.py"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_wrong_use_is_one_clear_block(folder: Path, command: Command, words: list[str], says: str) -> None:
    (folder / "broken.py").write_text("x = 1\nif :\n")
    done = command(*words)
    assert (done.code, done.out) == (2, ""), done.err
    assert says in done.err
    assert "Traceback" not in done.err
