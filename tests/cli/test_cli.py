"""The command line as a stranger meets it: real commands, their exit codes, and what goes to which stream."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import torch
from functools import partial
from torch import nn
import paceline as pl

def net():
    return nn.Linear(8, 3)

g = torch.Generator().manual_seed(0)
x = torch.randn(200, 8, generator=g)
job = pl.Job(model=net, data=(x, (x @ torch.randn(8, 3, generator=g)).argmax(1)), loss=nn.CrossEntropyLoss(),
             optimizer=partial(torch.optim.SGD, lr=0.5), batch_size=20, epochs=3, test=(x, (x @ torch.ones(8,
             3)).argmax(1)))
other = job.with_(epochs=1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def paceline(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline", *words], cwd=folder, capture_output=True, text=True, timeout=220
    )


def test_train_then_replay(folder: Path) -> None:
    done = paceline(folder, "train", "job.py", "--plan", "downpour", "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    wanted = (
        "plan engine compute workers epochs updates samples seconds samples_per_second test_accuracy test_loss "
        "staleness bytes_sent wait_fraction run parameters_sha256"
    )
    assert set(wanted.split()) <= set(summary)
    assert summary["updates"] == 30
    assert {"mean", "p95", "max"} <= set(summary["staleness"])
    again = paceline(folder, "replay", summary["run"], "--json")
    assert json.loads(again.stdout)["matches"] is True
    part = paceline(folder, "replay", summary["run"], "--until", "7", "--save", "at7.pt")
    assert part.returncode == 0, part.stderr
    assert "replayed 7 updates" in part.stderr
    assert (folder / "at7.pt").exists()
    assert sorted(p.name for p in (folder / summary["run"]).iterdir()) == [
        "job.pickle", "model.pt", "run.json", "source.py", "trace.arrow",
    ]  # fmt: skip


def test_report(folder: Path) -> None:
    done = paceline(folder, "train", "job.py:other", "--engine", "virtual", "-p", "ring", "-w", "2", "--quiet")
    assert done.returncode == 0, done.stderr
    done = paceline(folder, "report", "runs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "report.html\n")
    assert "<h1>job by ring, two workers</h1>" in (folder / "report.html").read_text()
    done = paceline(folder, "report", "runs", "--format", "csv", "-o", "all.csv")
    assert (done.returncode, done.stderr.split()) == (0, ["all.csv", "all-curves.csv"])


def test_people_read_standard_error(folder: Path) -> None:
    done = paceline(folder, "train", "job.py:other", "-p", "ring", "-w", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "samples/s: 10 updates" in done.stderr


def test_ddp_meets_in_a_run_folder_with_any_name(folder: Path) -> None:
    done = paceline(folder, "train", "job.py:other", "-p", "ddp", "-w", "2", "--runs", "my runs #1", "--quiet")
    assert done.returncode == 0, done.stderr


def test_compare(folder: Path) -> None:
    done = paceline(
        folder,
        "compare",
        "job.py",
        "--plans",
        "sequential,ddp,ring,downpour:shards=2",
        "--seconds",
        "0.5",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["plan"].partition(":")[0] for row in found["plans"]] == [
        "sequential",
        "ddp",
        "ring",
        "downpour",
    ]
    for row in found["plans"]:
        assert row["samples_per_second"] > 0
        assert (row["ceiling_share"] is None) == (row["workers"] == 1)
    accuracies = [row["test_accuracy"] for row in found["plans"][:3]]
    assert max(accuracies) - min(accuracies) < 0.02  # the same mathematics, DDP's included
    assert (folder / found["page"]).is_relative_to(folder / found["path"])
    assert "of the ceiling" in (folder / found["page"]).read_text()


def test_draw_goes_to_standard_output(folder: Path) -> None:
    done = paceline(folder, "draw", "tree", "--workers", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tree:workers=4: ")
    assert "worker 3" in done.stdout


def test_prove_tells_people_or_prints_one_object(folder: Path) -> None:
    done = paceline(folder, "prove", "ring", "-w", "4")
    assert (done.returncode, done.stdout) == (0, "")
    assert "ring:workers=4: proved" in done.stderr
    done = paceline(folder, "prove", "ssp:bound=0", "--json")
    found = json.loads(done.stdout)
    assert (found["plan"], found["holds"]) == ("ssp:bound=0", True)
    assert found["states"] > 500


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["train", "job.py", "--plan", "rign"], 2, "did you mean 'ring'"),
        (["train", "nothing.py"], 2, "there is no file nothing.py"),
        (["train", "digit"], 2, "did you mean 'digits'"),
        (["train", "job.py:jub"], 2, "it has job, other"),
        (["train", "job.py", "--engine", "cloud"], 2, "there is no engine 'cloud'"),
        (["train", "job.py", "--workers", "0"], 2, "workers"),
        (["train", "job.py", "--device", "gpu3"], 2, "device='gpu3' is no device"),
        (["train", "broken.py"], 2, "line 2"),
        (["replay", "."], 2, "no run.json"),
        (["replay", "nowhere"], 2, "not a run's folder"),
        (["report", "."], 2, "holds none"),
        (["report", ".", "--format", "htm"], 2, "did you mean 'html'"),
        (["draw", "rign"], 2, "did you mean 'ring'"),
        (["draw", "ring", "-w", "40"], 2, "draw at most 26"),
        (["draw", "runs/none"], 2, "neither a plan nor a run's folder"),
        (["draw", "gpipe", "--page", "nowhere/page.html"], 2, "--page nowhere/page.html: it would lie in nowhere"),
        (["replay", "run", "--save", "."], 2, "--save .: it is a folder"),
        (["check", ".", "--write-baseline", "nowhere/known"], 2, "it would lie in nowhere"),
        (["bench", "kernels", "--parts", "study", "--picture", "roof.svg"], 2, "draws the steps of part layers"),
        (["draw", "layers:on=0+1+2"], 2, "or give workers=3"),
        (["prove", "hierarchical", "-w", "3"], 2, "do not make 2 equal groups"),
        (["prove", "ssp:bound=-1"], 2, "at least 0"),
        (["fly"], 2, "No such command"),
    ],
)
def test_wrong_use_is_one_clear_block(folder: Path, words: list[str], code: int, says: str) -> None:
    (folder / "broken.py").write_text("x = 1\nif :\n")
    done = paceline(folder, *words)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_job_that_fails_exits_with_one(folder: Path) -> None:
    (folder / "bad.py").write_text(JOB + "\ndef loss(o, y):\n    assert len(y) < 5, 'too many'\n    return o.sum()\n")
    with (folder / "bad.py").open("a") as file:
        file.write("n = 0\ndef boom(m, b):\n    global n\n    n += 1\n    if n > 6: raise RuntimeError('seventh')\n")
        file.write("    return nn.functional.cross_entropy(m(b[0]), b[1])\n")
        file.write("job = job.with_(loss=None, step=boom)\n")
    done = paceline(folder, "train", "bad.py", "-p", "ring", "-w", "2")
    assert done.returncode == 1
    assert "failed first" in done.stderr
    assert "seventh" in done.stderr


def test_a_plain_script_needs_no_main_guard(folder: Path) -> None:
    (folder / "script.py").write_text(
        JOB + "\nrun = pl.train(job, 'downpour', workers=2)\nprint(run.summary()['updates'])\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "30\n"), done.stderr


SLOW = """
import multiprocessing, time
class Slow(nn.Linear):
    def forward(self, x):
        if self.training and str(multiprocessing.current_process().name).endswith("-2"):
            time.sleep(0.004)
        return super().forward(x)
job = job.with_(model=lambda: Slow(8, 3), epochs=6)
"""


def test_the_summary_names_the_straggler(folder: Path) -> None:
    (folder / "job.py").write_text(JOB + SLOW)
    done = paceline(folder, "train", "job.py", "-p", "ring", "-w", "3")
    assert done.returncode == 0, done.stderr
    assert re.search(r"straggler  worker 1 computes at \d+% of the others' speed", done.stderr)
