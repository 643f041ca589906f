"""`paceline watch` as users type it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.concurrency.check.options import Options
from paceline.concurrency.check.run import check_paths
from paceline.concurrency.watcher.report import HangReport, Span, Waiting
from paceline.concurrency.watcher.samples import Frame
from paceline.concurrency.watcher.session import add_verdicts, record_in_run, with_findings
from paceline.runtime.runs.live import HANG, EventKind, read_events

# The watcher quotes what the checker says of the lines that hang, and what it saw moves the checker's confidence.

TWO_ORDERS = """import threading
first, second = threading.Lock(), threading.Lock()
def other():
    with second:
        with first:
            pass
threading.Thread(target=other).start()
with first:
    with second:
        pass
"""


def hang(file: Path, line: int) -> HangReport:
    process = Waiting(10, "pid 10 (a.py)", "cause", "a lock", (10,), at=Frame(str(file), line, "<module>"))
    return HangReport("deadlocked", 0.99, Span(1e9, 9.0), (process,), "take locks in one order")


def confidence(feedback: Path | None) -> float:
    options = Options(cache=False, feedback=str(feedback or ""))
    (finding,) = check_paths([Path("a.py")], options).findings
    return finding.confidence


def test_a_hang_quotes_the_checker_and_raises_its_confidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(TWO_ORDERS)
    report = with_findings(hang(tmp_path / "a.py", 9))
    (found,) = report.findings
    assert (found.rule, found.path, found.line) == ("PC101", "a.py", 9)
    assert report.text().endswith(f"\n  => `paceline check` reports PC101 at a.py:9: {found.message}")
    assert report.to_dict()["findings"] == [found._asdict()]
    verdicts = tmp_path / "verdicts.txt"
    assert (add_verdicts(report, verdicts), add_verdicts(report, verdicts)) == (1, 0)
    assert confidence(verdicts) > confidence(None) + 0.1


def test_nothing_is_quoted_about_other_lines_or_without_the_source(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(TWO_ORDERS)
    assert with_findings(hang(tmp_path / "a.py", 2)).findings == ()
    assert with_findings(hang(tmp_path / "gone.py", 9)).findings == ()
    nowhere = hang(tmp_path / "a.py", 9)
    assert with_findings(replace(nowhere, processes=(replace(nowhere.processes[0], at=None),))).findings == ()


def test_a_hang_is_written_into_the_folder_of_a_run(tmp_path: Path) -> None:
    report = hang(Path("a.py"), 9)
    record_in_run(report, tmp_path)
    (event,) = read_events(tmp_path)
    assert (event.kind, event.pid, event.at) == (EventKind.HUNG, 10, 1e9)
    assert event.why == "deadlocked: pid 10 (a.py) waits for a lock at a.py:9"
    assert (tmp_path / HANG).read_text() == report.text() + "\n"


TRACES = Path(__file__).parent / "traces"
TWICE = "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()\n"
SKIPS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
for step in range(20):
    loss = model(torch.randn(4, 8)).square().mean()
    if dist.get_rank() == 2 and step == 7:
        continue
    loss.backward()
dist.barrier()
dist.destroy_process_group()
"""


def watch(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", "watch", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=400)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give one of"),
        (("--pid", "1", "--open", "x"), "give one of"),
        (("--pid", "4194305"), "there is no such process"),
        (("--run", "nowhere"), "no run is active there"),
        (("--open", "nowhere"), "has no trace.json.gz"),
        (("--seconds", "5", "--", "true"), "--seconds goes with"),
        (("--", "no-such-program"), "cannot be started"),
    ],
)
def test_wrong_use_starts_nothing(words: tuple[str, ...], says: str) -> None:
    done = watch(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_the_commands_own_code_and_words_are_handed_on() -> None:
    done = watch("--", sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "--json", "--gpus", "2")
    assert (done.returncode, done.stdout, done.stderr) == (7, "['--json', '--gpus', '2']\n", "")
    done = watch("--json", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 128 + 9
    assert json.loads(done.stdout) == {
        "hung": False,
        "exit_code": -9,
        "verdict": "ended",
        "probability": 1.0,
        "reports": [],
    }


def test_a_hang_is_named_saved_handed_over_and_ended(tmp_path: Path) -> None:
    script, told, saved = tmp_path / "twice.py", tmp_path / "told.json", tmp_path / "what hung"
    script.write_text(TWICE)
    done = watch("--json", "--kill-after", 0, "--save", saved, "--exec", f"cat > {told}", "--", sys.executable, script)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    (report,) = found["reports"]
    assert (found["hung"], found["verdict"], report["processes"][0]["role"]) == (True, "deadlocked", "cause")
    assert report["processes"][0]["at"] == {"file": str(script), "line": 4, "function": "<module>"}
    assert f"{script}:4" in done.stderr
    assert f"`paceline watch --open '{saved}'` shows it again" in done.stderr
    assert json.loads(told.read_text()) == report
    again = watch("--open", saved)
    assert again.returncode == 1
    assert again.stderr == (saved / "report.txt").read_text()


def test_a_snapshot_without_a_hang() -> None:
    done = watch("--open", TRACES / "sleepers.long_sleep")
    assert (done.returncode, done.stderr) == (0, "nothing in this trace hangs\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_ends_with_the_watcher(tmp_path: Path, number: int, code: int) -> None:
    script = tmp_path / "works.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n")
    command = [sys.executable, "-m", "paceline", "watch", "--", sys.executable, script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout
        pid = int(started.stdout.readline())
        started.send_signal(number)
        assert started.wait(60) == code
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.soak
def test_the_rank_that_skips_a_step_is_named(tmp_path: Path) -> None:
    script = tmp_path / "ddp.py"
    script.write_text(SKIPS)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 4, "--standalone", script)
    done = watch("--json", "--kill-after", 0, "--", *torchrun)
    (report,) = json.loads(done.stdout)["reports"]
    causes = [each for each in report["processes"] if each["role"] == "cause"]
    assert [(each["label"].partition(",")[0], each["collective"]) for each in causes] == [("rank 2", "barrier")]
    assert causes[0]["at"]["line"] == 11
    assert report["seconds"] < 15


def test_a_process_that_may_not_be_read_is_refused() -> None:
    """The watcher gives up all rights over processes of other users."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    without_rights = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    command = [sys.executable, "-m", "paceline", "watch", "--seconds", "1", "--pid"]
    with subprocess.Popen(["setpriv", "--reuid", "65534", "--clear-groups", "sleep", "60"]) as other:
        try:
            while b"sleep" not in Path(f"/proc/{other.pid}/cmdline").read_bytes().split(b"\0")[0]:
                time.sleep(0.01)
            done = subprocess.run([*without_rights, *command, str(other.pid)], capture_output=True, text=True)
        finally:
            other.kill()
    assert done.returncode == 2
    assert "may not be read" in " ".join(done.stderr.split())


def test_a_process_that_ends_or_goes_on_is_not_said_to_hang() -> None:
    with subprocess.Popen(["sleep", "0.5"]) as ends:
        done = watch("--pid", ends.pid)
    assert (done.returncode, done.stderr) == (0, "it ended without a hang\n")
    with subprocess.Popen(["sleep", "60"]) as sleeps:
        try:
            done = watch("--pid", sleeps.pid, "--seconds", 2)
        finally:
            sleeps.kill()
    assert (done.returncode, done.stderr) == (0, "nothing hung so far\n")


@pytest.mark.soak
def test_two_watchers_of_one_job_show_one_block(tmp_path: Path) -> None:
    """Each runs in namespaces of its own, with two of the four ranks and a name of its own."""
    unshare = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    if subprocess.run([*unshare, "hostname node"], capture_output=True).returncode:
        pytest.skip("needs the right to make namespaces")
    script = tmp_path / "ddp.py"
    script.write_text(SKIPS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nodes = []
    for node in range(2):
        torchrun = (
            f"-m torch.distributed.run --nnodes 2 --nproc-per-node 2 --master-port {port} --node-rank {node} {script}"
        )
        command = f"{sys.executable} -m paceline watch --json --kill-after 5 --share {tmp_path / 'share'} --"
        nodes.append(
            subprocess.Popen(
                [*unshare, f"hostname node-{node}; exec {command} {sys.executable} {torchrun}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [(node.communicate(timeout=400), node.returncode) for node in nodes]
    assert [code for _, code in told] == [1, 1]
    first, second = (json.loads(printed)["reports"][0] for (printed, _), _ in told)
    causes = [each["label"] for each in first["processes"] if each["role"] == "cause"]
    assert len(causes) == 1
    assert causes[0].startswith("rank 2, pid ")
    assert " on node-1 (" in causes[0]
    assert second["told_on"] == "node-0"
    assert "rank 2" in told[0][0][1]
    assert "rank 2" not in told[1][0][1]
