"""Nodes that a signal asks to end see each other end, in any order: the exit code is that of the signal."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.runtime.engines.cluster.nodes import SCRIPT, Nodes, nodes

#: As the command line does.
WITH_CODE = """
from paceline.errors import PacelineError

def run_script(script):
    try:
        exec(script)
    except PacelineError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)

"""


def _held(folder: Path, plan: str) -> tuple[Nodes, list[int]]:
    """Start two nodes; return them and their workers, which have stopped at a step: no checkpoint can be written."""
    (folder / "hold").touch()
    text = f"import json, sys\n{WITH_CODE}\n__file__ = {str(folder / 'node.py')!r}\nrun_script({SCRIPT!r})\n"
    ran = nodes(folder, 2, [plan], text=text, checkpoint_every=0)
    return ran, ran.held(2)


@pytest.mark.parametrize("plan", ["ring", pytest.param("downpour", marks=pytest.mark.soak)])
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
def test_a_head_whose_workers_are_gone_after_the_signal_was_stopped(
    plan: str, number: signal.Signals, tmp_path: Path
) -> None:
    """It said that no rank was left to finish the run, with exit code 1."""
    ran, workers = _held(tmp_path, plan)
    for rank in range(2):
        ran.kill(rank, number)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    ended = ran.end()
    assert [each.code for each in ended] == [128 + number] * 2, [each.err for each in ended]
    (record,) = tmp_path.glob("runs/*/run.json")
    assert json.loads(record.read_text())["status"] == "stopped"


def test_a_node_that_was_asked_to_end_before_it_lost_the_head(tmp_path: Path) -> None:
    """It said how to resume, with exit code 1."""
    ran, _ = _held(tmp_path, "ring")
    ran.kill(0, signal.SIGSTOP)  # so that it does not dismiss the other
    ran.kill(1, signal.SIGTERM)
    ran.kill(0)
    ran.release()
    other = ran.end()[1]
    assert other.code == 143, other.err
    assert "since it lost the head: rank 0" in other.err
    assert "paceline train --resume" in other.err
