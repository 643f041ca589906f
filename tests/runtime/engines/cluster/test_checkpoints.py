"""Checkpoints of runs on several nodes, and what they are resumed by."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import paceline as pl
from paceline.interfaces.testing.survival.proofs import applied_once
from paceline.runtime.engines.cluster import head_node
from paceline.runtime.engines.signals import Signals
from paceline.runtime.runs.trace import Kind, Trace
from tests.runtime.engines.cluster.held import BATCH, SAMPLES, is_late, job
from tests.runtime.engines.cluster.nodes import PATIENCE, Nodes, free_port, nodes, told
from tests.runtime.engines.cluster.test_deaths import gap, oracle

EPOCHS = 40  # of plans with servers, whose workers are held only when a checkpoint is there


def _held_at_a_checkpoint(folder: Path, plan: str, until: str = "", **job: Any) -> tuple[Nodes, Path]:
    """Start three nodes; return them when workers are held and a checkpoint before that is written.

    Under plans with servers one that is held may keep the others waiting: the next checkpoint needs its batch.
    The name of the run's folder has a space, which has to be quoted in commands.
    """
    (folder / "hold").write_text(until)
    ran = nodes(folder, 3, [plan], checkpoint_every=5, runs="my runs", job=job)
    ran.held(1 if until else 3)
    until = time.monotonic() + PATIENCE
    while not (found := [each for each in (folder / "my runs").glob("*/checkpoints/*") if is_late(each)]):
        assert time.monotonic() < until, [each.err.read_text() for each in ran.running]
        time.sleep(0.01)
    return ran, found[0].parents[1]


def _resumed(folder: Path, count: int, run: Path, **job: Any) -> dict[str, Any]:
    """Resume a run on so many nodes; return what rank 0 says."""
    other = folder / f"resumed-{count}"
    other.mkdir()
    return told(nodes(other, count, [None], resume=str(run), job=job).end()[0])[0]


def _end_orphans(folder: Path) -> None:
    """End the servers of a node that was killed: here they come from the tests' forkserver, which lives on.

    Those of a real node end with its own forkserver.
    """
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder):
                process.kill()


def _lose_all(ran: Nodes) -> None:
    """Kill every node: if one were left, it would lead."""
    for rank in range(3):
        ran.kill(rank)
    assert {each.code for each in ran.end()} == {-signal.SIGKILL}


def test_after_all_nodes_were_lost_the_run_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    ran, run = _held_at_a_checkpoint(tmp_path, "ring")
    _lose_all(ran)
    (tmp_path / "hold").unlink()
    found = _resumed(tmp_path, 2, run)  # by fewer nodes: the same chunks, so the same training
    assert found["summary"]["workers"] == 3
    assert gap(found["state"], oracle(tmp_path, "ring", 3)) < 1e-9
    assert pl.replay(run).matches
    assert len(Trace.open(run / "trace.arrow").of_kind(Kind.RESUME)) == 1


@pytest.mark.parametrize("plan", ["downpour:shards=2", pytest.param("ssp:bound=2", marks=pytest.mark.soak)])
def test_servers_are_resumed_with_another_number_of_nodes(tmp_path: Path, plan: str) -> None:
    """Every batch is in the model once, and the whole run is replayed, its parts with different workers and servers."""
    ran, run = _held_at_a_checkpoint(tmp_path, plan, "checkpoint", epochs=EPOCHS)
    _lose_all(ran)
    _end_orphans(tmp_path)
    (tmp_path / "hold").unlink()
    found = _resumed(tmp_path, 2, run, epochs=EPOCHS)
    assert found["summary"]["workers"] == 2
    assert not (wrong := applied_once(run, EPOCHS * -(-SAMPLES // BATCH))), wrong
    assert pl.replay(run).matches
    resumed = Trace.open(run / "trace.arrow").of_kind(Kind.RESUME)
    assert len(resumed) == (2 if "shards" in plan else 1)
    assert all(resumed["version"] == resumed["update"][0])


@pytest.mark.soak
def test_servers_of_several_machines_are_resumed_on_one_and_what_a_codec_owes_is_kept(tmp_path: Path) -> None:
    ran, run = _held_at_a_checkpoint(tmp_path, "downpour:codec=onebit", "checkpoint", epochs=EPOCHS)
    ran.kill(0, signal.SIGINT)
    ran.release()
    assert f"paceline train --resume {shlex.quote(str(run))}" in ran.end()[0].err
    torch.set_num_threads(1)
    assert pl.train(resume=run, max_updates=None).summary()["updates"] == EPOCHS * -(-SAMPLES // BATCH)
    assert pl.replay(run).matches


@pytest.mark.parametrize("plan", [pytest.param("tree", marks=pytest.mark.soak), "local_sgd:every=3"])
def test_ctrl_c_leaves_a_checkpoint_that_gives_the_same_bits(tmp_path: Path, plan: str) -> None:
    ran, run = _held_at_a_checkpoint(tmp_path, plan)
    for rank in range(3):  # as a terminal sends it to all processes of its foreground
        ran.kill(rank, signal.SIGINT)
    ran.release()
    first, *others = ran.end()
    assert "RunStopped: stopped after" in first.err
    assert f"paceline train --resume {shlex.quote(str(run))}" in first.err
    for each in others:
        assert "RunOver: the run has ended: stopped after" in each.err
    torch.set_num_threads(1)
    here = pl.train(job(tmp_path), plan, workers=3, engine="virtual", folder=None)
    assert _resumed(tmp_path, 3, run)["summary"]["parameters_sha256"] == here.summary()["parameters_sha256"]


@pytest.mark.soak
def test_one_machine_resumes_what_several_began(tmp_path: Path) -> None:
    ran, run = _held_at_a_checkpoint(tmp_path, "ring")
    _lose_all(ran)
    (tmp_path / "hold").unlink()
    torch.set_num_threads(1)
    here = pl.train(job(tmp_path), "ring", workers=3, engine="virtual", folder=None)
    assert pl.train(resume=run).summary()["parameters_sha256"] == here.summary()["parameters_sha256"]


def test_a_head_that_cannot_begin_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path | None) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(head_node, "EventLog", full)
    for name, value in {"RANK": "0", "NODES": "1", "HEAD": f"127.0.0.1:{free_port()}"}.items():
        monkeypatch.setenv(f"PACELINE_{name}", value)
    with pytest.raises(OSError, match="no space left"):
        pl.train(job(tmp_path), "ring", engine="cluster", folder=tmp_path / "runs", checkpoint_every=5)
    assert "paceline-checkpoints" not in {thread.name for thread in threading.enumerate()}


def test_a_run_goes_on_without_a_node_that_is_asked_to_end(tmp_path: Path) -> None:
    ran, run = _held_at_a_checkpoint(tmp_path, "ring")
    ran.kill(1, signal.SIGTERM)
    ran.release()
    first, second, third = ran.end()
    assert (first.code, third.code) == (0, 0), first.err + third.err
    assert "was asked to end (SIGTERM)" in second.err
    assert "rank 1 was asked to end (SIGTERM)" in first.err
    assert gap(told(first)[0]["state"], oracle(tmp_path, "ring", 3)) < 1e-9
    assert pl.replay(run).matches


def test_a_ctrl_c_that_other_nodes_got_as_well_is_no_second_one() -> None:
    signals = Signals()
    signals.take_of_another(signal.SIGINT)
    signals.take(signal.SIGINT)
    signals.take_of_another(signal.SIGINT)
    assert (signals.requested, signals.ending, signals.interrupted) == (True, signal.SIGINT, False)
    with pytest.raises(KeyboardInterrupt):
        signals.take(signal.SIGINT)
