"""The commands as a user meets them: exit codes, what goes to which stream, and one clear block for wrong use.

Most commands run in this process, through the same `main`. A process of its own is started only where the process is
what is tested: that nothing but one JSON object reaches standard output, and that a script needs no main guard.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.interfaces.cli.comparison import show_comparison
from paceline.interfaces.cli.plans import memory_for
from paceline.interfaces.cli.tables import show_summary
from paceline.plans.plan import Plan
from paceline.runtime.report.reading import lanes_of, open_all, run_stats
from paceline.runtime.runs.comparison import read_comparison
from paceline.runtime.runs.verdict import decided
from paceline.training.jobs.built_ins import built_in
from tests.interfaces.cli.conftest import JOB, Command
from tests.scripts import finish, typed


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run folder of two processes and its summary: the only JSON object that a process of its own printed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "job.py").write_text(JOB + "print('a line of the job, in every process')\n")
    words = ["train", "job.py", "--plan", "downpour", "--workers", "2", "--json"]
    (done,) = finish([typed(folder, *words)])
    assert done.code == 0, done.err
    assert "a line of the job" in done.err
    summary = json.loads(done.out)
    return folder / summary["run"], summary


def test_an_option_by_its_old_name_works_and_is_named_anew(folder: Path, command: Command) -> None:
    done = command("train", "job.py", "--updates=3", "--deadline", "60", "--runs", "old", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["updates"] == 3
    assert "--updates is called --max-updates now" in done.err
    assert "--deadline is called --timeout now" in done.err


def test_the_version_is_printed(command: Command) -> None:
    assert command("--version").out == f"paceline {paceline.__version__}\n"


def test_plans_are_listed_for_people_and_programs(command: Command) -> None:
    listed = command("plans")
    assert listed.code == 0
    found = json.loads(command("plans", "--json").out)["plans"]
    assert all(f"  {plan['name']} " in listed.out and plan["about"][:20] in listed.out for plan in found)
    assert {"one_f_one_b": ["1f1b"]}.items() <= {plan["name"]: plan["also_called"] for plan in found}.items()


def test_an_environment_variable_gives_an_option_its_default(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_PLAN", "no_such_plan")
    assert "no_such_plan" in command("train", "job.py").err


def test_train_prints_one_object_and_leaves_a_run_folder(trained: tuple[Path, dict[str, Any]]) -> None:
    run, summary = trained
    wanted = (
        "plan engine compute workers epochs updates samples seconds samples_per_second test_accuracy test_loss "
        "staleness bytes_sent wait_fraction run parameters_sha256"
    )
    assert set(wanted.split()) <= set(summary)
    assert summary["updates"] == 30
    assert {"mean", "p95", "max"} <= set(summary["staleness"])
    left = ["checkpoints", "job.pickle", "model.pt", "run.json", "source.py", "trace.arrow"]
    assert sorted(p.name for p in run.iterdir()) == left


def test_replay_ends_in_the_same_bits_or_stops_on_the_way(
    trained: tuple[Path, dict[str, Any]], command: Command, folder: Path
) -> None:
    run = str(trained[0])
    again = json.loads(command("replay", run, "--json").out)
    assert again["matches"] is True
    assert again["parameters_sha256"] == trained[1]["parameters_sha256"]
    part = command("replay", run, "--until", "7", "--save", "at7.pt")
    assert part.code == 0, part.err
    assert "replayed 7 updates" in part.err
    assert (folder / "at7.pt").exists()


def test_report(command: Command, folder: Path) -> None:
    done = command("train", "job.py:other", "--engine", "virtual", "-p", "ring", "-w", "2", "--quiet")
    assert done.code == 0, done.err
    assert command("report", "runs") == (0, "", "runs/report.html\n")
    assert "<h1>job by ring, two workers</h1>" in (folder / "runs" / "report.html").read_text()
    done = command("report", "runs", "--format", "csv", "-o", "all.csv")
    assert (done.code, done.err.split()) == (0, ["all.csv", "all-curves.csv"])


def test_text_for_people_goes_to_standard_error(command: Command) -> None:
    done = command("train", "job.py:measured", "-p", "ring", "-w", "2")
    assert (done.code, done.out) == (0, ""), done.err
    assert "samples/s: 30 updates" in done.err
    assert "share_of_0 0." in done.err


def test_ddp_takes_a_run_folder_with_any_name(command: Command) -> None:
    done = command("train", "job.py:other", "-p", "ddp", "-w", "2", "--runs", "my runs #1", "--quiet")
    assert done.code == 0, done.err


def compared(command: Command, plans: str, seconds: str) -> dict[str, Any]:
    """What `paceline compare` prints, after what holds of any comparison."""
    done = command("compare", "job.py:measured", "--plans", plans, "--seconds", seconds, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    rows = found["plans"]
    for row in rows:
        assert row["samples_per_second"] > 0
        assert (row["ceiling_share"] is None) == (row["workers"] == 1)
        assert len(row["rounds"]) == found["rounds"]
        assert row["speedup_interval"][0] <= row["speedup"] <= row["speedup_interval"][1]
        assert set(row["metrics"]) == {"test_loss", "test_accuracy", "share_of_0"}
        assert row["seconds_to_common_accuracy"] is not None
    assert found["common_accuracy"] == min(row["test_accuracy"] for row in rows)
    assert found["answer"]["kind"] in ("recommended", "single", "undecided")
    assert any("compute=auto took " in note for note in found["notes"])
    synchronous = [row["test_accuracy"] for row in rows if not row["plan"].startswith("downpour")]
    assert max(synchronous) - min(synchronous) < 0.02  # the same mathematics
    return found


def test_a_comparison_prints_its_rows_and_keeps_its_runs_its_table_and_a_page(
    command: Command, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(command, "sequential,downpour:workers=2,shards=2", "0.05")
    assert [row["plan"].partition(":")[0] for row in found["plans"]] == ["sequential", "downpour"]
    place, page = folder / found["path"], folder / found["page"]
    assert page == place / "report.html"
    assert sorted(p.name for p in place.iterdir() if p.is_file()) == ["comparison.json", "report.html"]
    record = read_comparison(place)
    assert record is not None
    show_comparison(decided(record))
    said = capsys.readouterr().err
    assert "share_of_0" in said
    assert said.rstrip().endswith(found["answer"]["sentence"])
    opened = open_all([folder / "runs"])
    assert [r.method for r in opened] == ["sequential", "downpour"]
    (row,) = (f for f in run_stats(opened, lanes_of(opened)) if f.workers == 2)
    assert row.timed
    assert row.speedup == found["plans"][1]["speedup"]
    assert row.ceiling_share == found["plans"][1]["ceiling_share"]
    assert f'<section class="answer {found["answer"]["kind"]}"' in page.read_text()
    assert "share of 0" in page.read_text()


@pytest.mark.soak
def test_ddp_is_compared_too(command: Command) -> None:
    assert len(compared(command, "sequential,ddp,ring", "0.5")["plans"]) == 3


def test_draw_says_that_the_layers_are_not_those_of_the_job() -> None:
    line = memory_for(built_in("digits"), Plan.parse("tensor:workers=2"))
    assert line.startswith("The layers are those of an example network. For digits, workers take at most ")


def test_draw_goes_to_standard_output(command: Command) -> None:
    done = command("draw", "tree", "--workers", "4")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("tree:workers=4: ")
    assert "worker 3" in done.out


def test_prove_reports_to_people_or_prints_one_object(command: Command) -> None:
    done = command("prove", "ring", "-w", "4")
    assert (done.code, done.out) == (0, "")
    assert "ring:workers=4: proved" in done.err
    found = json.loads(command("prove", "ssp:bound=0", "--json").out)
    assert (found["plan"], found["holds"]) == ("ssp:bound=0", True)
    assert found["states"] > 100


def test_a_job_that_fails_exits_with_one(command: Command, folder: Path) -> None:
    (folder / "bad.py").write_text(
        JOB + "n = 0\ndef boom(m, b):\n    global n\n    n += 1\n    if n > 6: raise RuntimeError('seventh')\n"
        "    return nn.functional.cross_entropy(m(b[0]), b[1])\n"
        "job = job.with_(loss=None, step=boom)\n"
    )
    done = command("train", "bad.py", "-p", "ring", "-w", "2")
    assert done.code == 1
    assert "failed first" in done.err
    assert "seventh" in done.err


def test_a_plain_script_needs_no_main_guard(folder: Path) -> None:
    (folder / "script.py").write_text(
        JOB + "\nrun = pl.train(other, 'downpour', workers=2)\nprint(run.summary()['updates'])\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr


def test_the_summary_names_what_went_wrong(
    trained: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    show_summary({**trained[1], "stragglers": {}, "not_finite": 0, "deaths": []})
    calm = capsys.readouterr().err
    assert not {"straggler", "not finite", "died"} & {line[:13].strip() for line in calm.splitlines()}
    show_summary({**trained[1], "stragglers": {1: 0.41}, "not_finite": 2, "deaths": [0]})
    said = capsys.readouterr().err
    assert "straggler  worker 1 computes at 41% of the others' speed" in said
    assert "not finite  the loss of 2 gradients" in said
    assert "died  workers [0]; the others finished the training" in said


SLOW = """
import multiprocessing, time
class Slow(nn.Linear):
    def forward(self, x):
        if self.training and multiprocessing.current_process().name.endswith("-2"):
            time.sleep(0.2)  # much longer than any time slice of a busy machine
        return super().forward(x)
job = job.with_(model=lambda: Slow(8, 3), epochs=2)
"""


@pytest.mark.soak
def test_a_slow_worker_of_a_real_run_is_a_straggler(folder: Path) -> None:
    """In an interpreter of its own, since multiprocessing numbers all processes that an interpreter starts."""
    (folder / "job.py").write_text(JOB + SLOW)
    command = [sys.executable, "-m", "paceline", "train", "job.py", "-p", "ring", "-w", "3"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "straggler  worker 1 computes at" in done.stderr


def test_keys_are_made_for_machines_by_name(command: Command, folder: Path) -> None:
    done = command("keys", "secrets", "--hosts", "a,10.0.0.2", "--days", "3")
    assert (done.code, done.out) == (0, "")
    assert "secrets/10.0.0.2  copy it to 10.0.0.2, and start with --keys there" in done.err
    assert sorted(file.name for file in (folder / "secrets" / "a").iterdir()) == [
        "ca.pem",
        "cert.pem",
        "hosts.txt",
        "key.pem",
    ]


def test_a_job_file_in_a_package_imports_from_it_and_parses_no_arguments(folder: Path, command: Command) -> None:
    for path, text in {
        "study/__init__.py": "",
        "study/nets.py": "from torch import nn\nclass Net(nn.Linear):\n    pass\n",
        "study/jobs/__init__.py": "",
        "study/jobs/first.py": f"import argparse\nfrom ..nets import Net\n{JOB}parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--width', type=int, default=10)\n"
        "job = job.with_(model=lambda: Net(job.data[0].shape[1], parser.parse_args([]).width))\nparser.parse_args()\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    done = command("train", "study/jobs/first.py", "--plan", "ring:workers=2", "--json")
    assert done.code == 0, done.err
    replayed = command("replay", json.loads(done.out)["run"])
    assert replayed.code == 0, replayed.err
