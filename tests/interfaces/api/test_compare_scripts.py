"""A script of the user's, unchanged, under gloo and under Paceline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.concurrency.watcher.waits import state_of
from paceline.errors import RunFailed, UsageError
from paceline.interfaces.api.comparing import compare_scripts
from paceline.interfaces.api.comparing.compare_scripts import Entrant, ScriptRow, answer_of, compare_script, run_to_end
from tests.runtime.engines.cluster.nodes import PATIENCE, free_port

DDP = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(backend="gloo")
if len(sys.argv) > 1:
    assert sys.argv[1:] == ["--steps", "20"], sys.argv
assert dist.get_backend() in ("gloo", "paceline")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Linear(10, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(8, 10)), torch.randint(0, 3, (8,))).backward()
    optimizer.step()
print(dist.get_backend(), file=open("said", "a"))
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # so that one process is tried only once
    path = tmp_path / "train.py"
    path.write_text(DDP)
    return path


#: Two ranks as torchrun starts them, of one process: a fresh interpreter takes four seconds to import PyTorch.
RANKS = """
import os, sys
import torch._dynamo
os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}", OMP_NUM_THREADS="1")
other = os.fork()
os.environ["RANK"] = str(int(other == 0))
{script}
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def one_round(script: Path) -> dict[str, Any]:
    """By a command of the user's own; `verify_script` starts scripts by torchrun (test_first_step)."""
    script.write_text(RANKS.format(port=free_port(), script=DDP))
    return compare_script(f"python {script} --steps 20", rounds=1).as_dict()


def by_the_command_line(script: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "paceline", "compare", "--script", f"{script} --steps 20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("way", [one_round, pytest.param(by_the_command_line, marks=pytest.mark.soak)])
def test_a_script_runs_unchanged_under_both_and_trains_the_same(
    script: Path, way: Callable[[Path], dict[str, Any]]
) -> None:
    found = json.loads(json.dumps(way(script)))
    assert [row["processes"] for row in found["rows"]][-2:] == [2, 2]
    assert all(row["steps"] == 20 and row["milliseconds_per_step"] > 0 for row in found["rows"])
    assert found["difference"] < 1e-6
    assert found["answer"].split(":")[0] in ("Recommended", "Undecided") or "the best you can do" in found["answer"]
    said = (script.parent / "said").read_text().split()
    assert said.count("paceline") == 2 * found["rounds"]
    assert said.count("gloo") >= 2 * found["rounds"]


@pytest.mark.parametrize(
    ("speedup", "interval", "says"),
    [
        (1.4, (1.35, 1.45), "Recommended: 2 processes, paceline, 1.40x (±4%) as fast as 2 processes, gloo; to use it:"),
        (0.8, (0.78, 0.81), "2 processes, gloo is the best you can do here: 2 processes, paceline is 0.80x (±2%)"),
        (1.1, (0.98, 1.2), "Undecided: 2 processes, paceline is 0.98x to 1.20x as fast as 2 processes, gloo"),
        (2.0, (1.2, 2.9), "Undecided"),
    ],
)
def test_a_comparison_of_a_script_ends_with_an_answer(speedup: float, interval: tuple[float, float], says: str) -> None:
    ours = ScriptRow("2 processes, paceline", 2, 1.0, (1.0, 1.0), 2000.0, speedup, 1.0, 20, interval)
    assert answer_of(ours, "2 processes, gloo").startswith(says)


def test_a_script_that_needs_two_is_reported_and_one_that_fails_is_quoted(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: object, entrant: Entrant, seconds: float) -> None:
        if entrant.processes == 1:
            raise RunFailed("the script ended with 1. Its last output:\nValueError: lonely")
        entrant.milliseconds.append(1.0)
        entrant.seconds.append(1.0)
        entrant.steps = 20

    with monkeypatch.context() as patch:
        patch.setattr("paceline.interfaces.api.comparing.compare_scripts._run", run)
        found = compare_script("train.py", rounds=1)
    assert len(found.rows) == 2
    assert [note.endswith("ValueError: lonely") for note in found.notes] == [True]
    script.write_text("raise KeyError('of the user')\n")
    with pytest.raises(RunFailed, match="of the user"):
        compare_script("train.py", rounds=1)


def test_files_that_a_script_leaves_for_its_later_runs_are_named(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that goes on from its snapshot trained once, and then hardly any more."""
    (script.parent / "data.csv").write_text("read alone")

    def run(command: object, entrant: Entrant, seconds: float) -> None:
        entrant.milliseconds.append(1.0)
        entrant.seconds.append(1.0)
        (script.parent / "deep").mkdir(exist_ok=True)
        (script.parent / "deep" / "snapshot.pt").write_text(entrant.name)

    monkeypatch.setattr("paceline.interfaces.api.comparing.compare_scripts._run", run)
    (note,) = compare_script("train.py", rounds=2).notes
    assert note.startswith(
        "the script writes deep/snapshot.pt, which its later runs find: where it goes on from a snap"
    )


STARTS_ANOTHER = """
import subprocess, sys
from pathlib import Path
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
Path("started.draft").write_text(str(started.pid))
Path("started.draft").rename("started")
started.wait()
"""


def test_no_process_of_a_script_is_left_when_it_takes_too_long(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text(STARTS_ANOTHER)
    monkeypatch.chdir(script.parent)
    started, until = script.parent / "started", time.monotonic() + PATIENCE

    def too_late(process: subprocess.Popen[str], timeout: float) -> tuple[str, str]:
        while not started.exists() and time.monotonic() < until:
            time.sleep(0.001)
        monkeypatch.undo()
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", too_late)
    with pytest.raises(RunFailed, match=r"train\.py: no end after 1 s"):
        run_to_end([sys.executable, str(script)], dict(os.environ), 1.0, "train.py: no end")
    pid = int(started.read_text())
    while state_of(pid, pid) not in ("", "Z"):
        assert time.monotonic() < until, pid


def test_stupid_inputs_are_told(script: Path) -> None:
    with pytest.raises(UsageError, match="there is no file nothing"):
        compare_script("nothing.py")
    with pytest.raises(UsageError, match="is empty"):
        compare_script("  ")
    script.write_text("print('no training here')\n")
    with pytest.raises(UsageError, match="fewer than 3 steps"):
        compare_script("python train.py", rounds=1)


def test_ctrl_c_gives_the_rounds_that_are_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    runs: list[str] = []

    def run(command: object, entrant: Entrant, seconds: float) -> None:
        if len(runs) == 3:
            raise KeyboardInterrupt
        runs.append(entrant.backend)
        entrant.milliseconds.append(2.0 if entrant.backend == "gloo" else 1.0)
        entrant.seconds.append(1.0)

    monkeypatch.setattr(compare_scripts, "_run", run)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        compare_script("python train.py")
    (comparison,) = interrupt.value.args
    assert runs == ["gloo", "paceline", "gloo"]
    assert (comparison.rounds, comparison.over_gloo, len(comparison.rows)) == (1, 2.0, 2)
