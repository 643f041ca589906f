"""Standard streams that are closed, full or of another encoding, and the exit codes that follow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TYPED = f"{sys.executable} -m paceline"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, timeout=100, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_takes_nothing_and_breaks_nothing(closed: str) -> None:
    code, _, err = shell(f"{TYPED} plans {closed}")
    assert (code, err) == (0, "")


def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    assert shell(f"{TYPED} plans | head -1") == (0, "One process\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    code, _, err = shell(f"{TYPED} plans > /dev/full")
    assert code == 1
    assert (
        err == "nothing more can be written: No space left on device; make room, or name another place (--runs, -o)\n"
    )


def test_a_report_is_written_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import torch, paceline\nfrom torch import nn\nx = torch.ones(20, 3)\n"
        "job = paceline.Job(lambda: nn.Linear(3, 1), (x, x[:, :1]), nn.MSELoss(), batch_size=10,\n"
        "                   optimizer=lambda p: torch.optim.SGD(p, lr=0.1))\n",
        encoding="utf-8",
    )
    code, _, err = shell(f"cd {tmp_path} && {TYPED} train job.py --quiet && {TYPED} report runs/*", **ASCII)
    assert code == 0, err
    assert "×" in next((tmp_path / "runs").rglob("report.html")).read_text(encoding="utf-8")
