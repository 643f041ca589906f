"""Ctrl-C, as a terminal sends it: to everybody. Once: a checkpoint, and a clean end; twice: at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest

import paceline.interfaces.cli
from paceline.errors import RunStopped
from paceline.runtime.engines.signals import termination
from tests import scripts
from tests.errors.cases import HEAD
from tests.scripts import finish, typed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(HEAD + "job = job.with_(epochs=10**6)\n")
    (tmp_path / "short.py").write_text(HEAD)
    return tmp_path


def start(folder: Path, plan: str) -> subprocess.Popen[str]:
    """A training that goes on for hours, once it is on its way."""
    command = [sys.executable, "-m", "paceline", "train", "job.py", "-p", plan, "-w", "2"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 300
    while not any(file.stat().st_size > 5_000 for file in folder.glob("runs/*/trace.arrow")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def ended(process: subprocess.Popen[str], family: list[psutil.Process]) -> str:
    try:
        said = process.communicate(timeout=300)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[1]
    _, left = psutil.wait_procs(family, timeout=60)
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]
    assert process.returncode == 130, said
    return said


@pytest.mark.parametrize("plan", ["downpour", pytest.param("ring", marks=pytest.mark.soak)])
def test_once_a_clean_end_that_can_go_on(plan: str, folder: Path) -> None:
    process = start(folder, plan)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    said = ended(process, family)
    assert re.search(
        r"stopped after [\d,]+ of [\d,]+ updates, with train loss [\d.]+; a checkpoint is written", said
    ), said
    go_on = re.search(r"resume  paceline train --resume (\S+)", said)
    assert go_on, said
    (look,) = finish([typed(folder, "report", go_on[1])])
    assert look.code == 0, look.err
    assert (folder / "report.html").exists() or list(folder.glob("runs/*/report.html"))


def test_the_commands_that_are_named_quote_the_folder() -> None:
    said = str(RunStopped(signal.SIGINT, 10, 100, 0.5, "my runs/1"))
    assert "paceline train --resume 'my runs/1'" in said
    assert "paceline report 'my runs/1'" in said


def test_a_run_that_is_stopped_before_its_first_update_says_no_loss_and_no_command_that_would_do_nothing() -> None:
    for loss in (None, float("nan")):
        said = str(RunStopped(signal.SIGTERM, 0, 100, loss, "runs/1"))
        assert said.startswith("stopped before the workers had finished an update; it has no checkpoint yet\n  look ")
    said = str(RunStopped(signal.SIGTERM, 10, 100, None, "runs/1"))
    assert said.startswith("stopped before the workers had finished an update; its last checkpoint is that after 10\n")
    assert "--resume runs/1" in said


def test_twice_at_once(folder: Path) -> None:
    process = start(folder, "ring")
    family = psutil.Process(process.pid).children(recursive=True)
    worker = next(each for each in family if each.ppid() != process.pid)  # a child of the forkserver
    worker.suspend()  # so that no checkpoint can be had
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr
    while "Ctrl-C again stops at once" not in (line := process.stderr.readline()):
        assert line, "it ended at the first Ctrl-C"
    os.killpg(process.pid, signal.SIGINT)
    said = ended(process, family)
    assert "interrupted; every worker was stopped" in said


def test_an_interrupt_that_was_lost_is_raised_again(folder: Path) -> None:
    (folder / "lost.py").write_text(
        """
import os, signal, sys
sys.path.insert(0, ".")
from job import job
from paceline import train

class Destroyed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)  # Python reports what is raised here, and goes on

class TwoInterrupts:
    def on_update_end(self, training, report):
        if report.updates and not report.stopping:
            os.kill(os.getpid(), signal.SIGINT)
            Destroyed()

if __name__ == "__main__":
    try:
        train(job, "ring", workers=2, callbacks=[TwoInterrupts()])
    except KeyboardInterrupt:
        print("raised")
"""
    )
    (done,) = finish([scripts.start(folder / "lost.py")])
    assert "Exception ignored" in done.err, done.err
    assert done.out == "raised\n", done.err


# --- SIGTERM ---


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("importing", signal.SIGTERM),
        ("probing", signal.SIGTERM),
        ("caught", signal.SIGTERM),
        ("caught", signal.SIGINT),
        ("training without checkpoints", signal.SIGTERM),
    ],
)
def test_a_signal_ends_a_command_with_its_code_and_leaves_nothing(
    moment: str, number: signal.Signals, folder: Path
) -> None:
    """It died of the signal before a handler stood, went on if a job lost the interrupt, and left a folder at times."""
    signals = f"os.kill(os.getpid(), {int(number)})"
    once = f"multiprocessing.parent_process() is None and not said and (said.append(1), {signals})"
    (folder / "signalled.py").write_text(
        HEAD
        + "import multiprocessing, signal\nsaid = []\n"
        + {
            "importing": f"{signals}\n",
            "probing": f"class Signals(Net):\n    def forward(self, x):\n        {once}\n"
            "        return super().forward(x)\njob = job.with_(model=Signals)\n",
            "caught": f"try:\n    {signals}\nexcept BaseException:\n    pass\n",
            "training without checkpoints": "class Signals(Net):\n    def forward(self, x):\n"
            "        if multiprocessing.parent_process() is not None:\n"
            "            os.kill(parent, signal.SIGTERM)\n            time.sleep(600)\n"
            "        return super().forward(x)\nimport time\n"
            "job = job.with_(model=lambda: nn.Sequential(Signals(), nn.Linear(3, 3)))\n",
        }[moment]
    )
    scratch = folder / "scratch"
    scratch.mkdir()
    plan = "ampnet" if moment.endswith("checkpoints") else "ring"
    command = [sys.executable, "-m", "paceline", "train", "signalled.py", "-p", plan, "-w", "2"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "TMPDIR": str(scratch)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 128 + number, done.stderr
    how = "stopped by SIGTERM" if number == signal.SIGTERM else "interrupted"
    assert f"{how}; every worker was stopped" in done.stderr
    assert not list(scratch.iterdir())
    for file in folder.glob("runs/*/run.json"):
        assert json.loads(file.read_text())["status"] == "stopped"


@pytest.mark.parametrize(
    ("command", "says"), [("train", "stopped by SIGTERM; every worker was stopped\n"), ("watch", "")]
)
def test_the_watcher_that_a_run_ends_says_nothing(
    command: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` replaces it
    monkeypatch.setattr(sys, "argv", ["paceline", command])
    monkeypatch.setattr(paceline.interfaces.cli, "app", lambda **call: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(paceline.interfaces.cli, "register", lambda: None)
    with pytest.raises(SystemExit) as end:
        paceline.interfaces.cli.main()
    assert end.value.code == 143
    assert capsys.readouterr().err == says
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("module", ["paceline.interfaces.cli", "numpy", "torch._utils"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_command_is_imported_ends_it_without_a_word(number: signal.Signals, module: str) -> None:
    """PyTorch loses an interrupt that comes while it imports NumPy, which cannot be imported a second time then."""
    program = (
        "import os, signal, sys\n"
        "class Import:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Import())\n"
        "from paceline.__main__ import run\n"
        "sys.argv = ['paceline', 'train', 'digits']\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


def test_an_interrupt_of_code_that_c_runs_leaves_the_exit_code() -> None:
    program = (
        "import ctypes, os, signal, sys\n"
        "import paceline.interfaces.cli\n"
        "from paceline.__main__ import run\n"
        "def app(**_):\n"
        "    code = b'import os, signal; os.kill(os.getpid(), signal.SIGTERM)'\n"
        "    ctypes.pythonapi.PyRun_SimpleStringFlags(code, None)\n"
        "    raise KeyboardInterrupt\n"
        "paceline.interfaces.cli.app = app\n"
        "paceline.interfaces.cli.register = lambda: None\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 143, done.stderr


def test_the_handler_of_a_command_is_not_that_of_processes_that_it_forks() -> None:
    with termination.interrupts():
        pid = os.fork()
        if not pid:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
        assert not termination.requested
