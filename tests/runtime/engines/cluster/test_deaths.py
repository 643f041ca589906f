"""Nodes and workers that are killed or stopped; the others go on, and train what all together would have trained."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.runtime.runs.record import read_record
from paceline.runtime.runs.trace import Kind, Trace
from tests.runtime.engines.cluster.held import BATCH, SAMPLES, job
from tests.runtime.engines.cluster.nodes import PATIENCE, SCRIPT, Nodes, nodes, told

SILENCE = 5.0  # seconds, where a process is stopped: those that live on are not silent for as long on a busy machine


def _held(folder: Path, count: int, plan: str, **options: Any) -> tuple[Nodes, list[int]]:
    """Start nodes; return them and the processes of their workers, which have all stopped in the same update."""
    (folder / "hold").touch()
    ran = nodes(folder, count, [plan], **options)
    return ran, ran.held(count)


def oracle(folder: Path, plan: str, count: int) -> dict[str, list[float]]:
    """Train in one process what the plan would have trained without a death."""
    torch.set_num_threads(1)
    run = pl.train(job(folder), plan, workers=count, engine="virtual", folder=None)
    return {name: value.double().flatten().tolist() for name, value in run.model.state_dict().items()}


def gap(found: dict[str, list[float]], wanted: dict[str, list[float]]) -> float:
    a, b = (
        torch.cat([torch.tensor(each, dtype=torch.float64) for each in state.values()]) for state in (found, wanted)
    )
    return float((a - b).norm() / b.norm())


def _check(folder: Path, ran: Nodes, plan: str, count: int, dead: list[int] | None = None) -> None:
    """The survivors agree, have the parameters of the undisturbed run, and the run says who died."""
    ended = ran.end()
    codes = [each.code for each in ended]
    lost = [rank for rank, code in enumerate(codes) if code]
    assert dead is None or lost == dead, [each.err for each in ended]
    alive = [told(each)[0] for each in ended if not each.code]
    assert len({each["summary"]["parameters_sha256"] for each in alive}) == 1
    assert gap(alive[0]["state"], oracle(folder, plan, count)) < 1e-9
    (run,) = (folder / "runs").iterdir()
    assert read_record(run).summary is not None
    trace = Trace.open(run / "trace.arrow")
    deaths = trace.of_kind(Kind.DEATH)["worker"].tolist()
    assert deaths == list(read_record(run).summary.deaths)  # type: ignore[union-attr]
    assert sorted(rank for rank in deaths if rank) == lost  # the process of rank 0 outlives its worker
    for rank in deaths:
        assert f"rank {rank} " in ended[0].err
    assert pl.replay(run).matches


@pytest.mark.parametrize(
    "plan",
    ["ring:canonical=3", pytest.param("halving_doubling:canonical=3", marks=pytest.mark.soak)],
)
def test_a_worker_is_killed_and_no_bit_is_another(tmp_path: Path, plan: str) -> None:
    ran, workers = _held(tmp_path, 3, plan)
    os.kill(workers[0], signal.SIGKILL)
    ran.release()
    alive = [told(each)[0] for each in ran.end() if not each.code]
    torch.set_num_threads(1)
    expected = pl.train(job(tmp_path), "sequential:canonical=3", engine="virtual", folder=None)
    assert {each["summary"]["parameters_sha256"] for each in alive} == {expected.summary()["parameters_sha256"]}
    (run,) = (tmp_path / "runs").iterdir()
    assert len(Trace.open(run / "trace.arrow").of_kind(Kind.DEATH)) == 1
    assert pl.replay(run).matches


@pytest.mark.parametrize("plan", ["ring", pytest.param("tree", marks=pytest.mark.soak)])
def test_a_worker_is_killed(tmp_path: Path, plan: str) -> None:
    ran, workers = _held(tmp_path, 3, plan)
    os.kill(workers[0], signal.SIGKILL)
    ran.release()
    _check(tmp_path, ran, plan, 3)


@pytest.mark.parametrize(
    "plan",
    [
        "ring:codec=onebit",
        pytest.param("ring:codec=powersgd:1", marks=pytest.mark.soak),
        pytest.param("diloco:every=2,codec=onebit", marks=pytest.mark.soak),
        pytest.param("diloco:every=4,fragments=3,codec=powersgd:1", marks=pytest.mark.soak),
        "diloco:every=4,fragments=2,overlap=2,codec=powersgd:1",
        "diloco:every=3,overlap=3,codec=onebit",
    ],
)
def test_a_worker_is_killed_under_a_codec_that_owes(tmp_path: Path, plan: str) -> None:
    """What the dead worker owed is lost with it; the others exchange again from what they owed before."""
    ran, workers = _held(tmp_path, 3, plan)
    os.kill(workers[0], signal.SIGKILL)
    ran.release()
    alive = [told(each)[0] for each in ran.end() if not each.code]
    assert len({each["summary"]["parameters_sha256"] for each in alive}) == 1
    (run,) = (tmp_path / "runs").iterdir()
    assert len(Trace.open(run / "trace.arrow").of_kind(Kind.DEATH)) == 1
    assert read_record(run).summary is not None
    assert pl.replay(run).matches


def test_a_worker_dies_while_it_applies_a_sum_that_others_may_lack(tmp_path: Path) -> None:
    (tmp_path / "die").touch()
    ran = nodes(tmp_path, 3, ["ring"])
    _check(tmp_path, ran, "ring", 3)


def test_an_agent_is_killed_with_its_worker_where_chunks_differ_in_size(tmp_path: Path) -> None:
    plan = "ring:sizes=3+2+1"
    ran, _ = _held(tmp_path, 3, plan)
    ran.kill(1)
    ran.release()
    _check(tmp_path, ran, plan, 3, [1])


def test_two_die_and_the_last_one_goes_on(tmp_path: Path) -> None:
    ran, _ = _held(tmp_path, 3, "ring")
    ran.kill(2)
    ran.kill(1)
    ran.release()
    _check(tmp_path, ran, "ring", 3, [1, 2])


@pytest.mark.soak
def test_a_stopped_worker_is_left_behind(tmp_path: Path) -> None:
    ran, workers = _held(tmp_path, 3, "ring", silence=SILENCE)
    os.kill(workers[0], signal.SIGSTOP)
    ran.release()
    _check(tmp_path, ran, "ring", 3)


def test_a_stopped_node_is_left_behind_and_ends_when_it_wakes(tmp_path: Path) -> None:
    ran, _ = _held(tmp_path, 3, "ring", silence=SILENCE)
    ran.kill(1, signal.SIGSTOP)
    ran.release()
    first = ran.running[0].end(PATIENCE)
    assert first.code == 0, first.err
    ran.kill(1, signal.SIGCONT)
    _check(tmp_path, ran, "ring", 3, [1])
    assert "the run has gone on without rank 1" in (tmp_path / "node-1.err").read_text()


def test_a_head_that_was_stopped_for_longer_than_others_may_be_is_waited_for(tmp_path: Path) -> None:
    """Of two nodes none takes its place, so to give it up would end the run."""
    ran, _ = _held(tmp_path, 2, "ring", silence=3.0)
    ran.kill(0, signal.SIGSTOP)
    time.sleep(4.0)
    ran.kill(0, signal.SIGCONT)
    ran.release()
    _check(tmp_path, ran, "ring", 2, [])


ASKED_TO_END = """
import os, signal
from paceline.runtime.engines.cluster.seat import Seat

gone = Seat.gone

def asked(self, event):
    os.kill(os.getpid(), signal.SIGTERM)
    return gone(self, event)

Seat.gone = asked
"""


def test_a_node_that_its_launcher_ends_with_the_head_does_not_lead_and_says_why(tmp_path: Path) -> None:
    """torchrun sends SIGTERM to all other ranks as soon as one of them has died."""
    ran, _ = _held(tmp_path, 2, "ring", text=ASKED_TO_END + SCRIPT)
    ran.kill(0)
    ran.release()
    other = ran.end()[1]
    assert other.code == 1  # of an error that Python prints; the command's is 143
    assert "since it lost the head: rank 0" in other.err


@pytest.mark.parametrize("plan", [pytest.param("local_sgd:every=4", marks=pytest.mark.soak), "gossip"])
def test_replicas_go_on_without_the_dead_one(tmp_path: Path, plan: str) -> None:
    ran, workers = _held(tmp_path, 3, plan)
    os.kill(workers[0], signal.SIGKILL)
    ran.release()
    ended = ran.end()
    alive = [told(each)[0] for each in ended if not each.code]
    assert len(alive[0]["summary"]["deaths"]) == 1, [each.err for each in ended]
    assert len({each["summary"]["parameters_sha256"] for each in alive}) == 1
    assert alive[0]["summary"]["updates"] == 3 * -(-SAMPLES // BATCH)
    (run,) = (tmp_path / "runs").iterdir()
    assert pl.replay(run).matches


#: Batches that four workers can share, with more than a sample each for batch-norm.
SHARED = {"epochs": 25, "batch_size": 16}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_faults_at_random_moments(tmp_path: Path, seed: int) -> None:
    """Two of four nodes are killed or stopped at moments that come from a seed, in the middle of whatever they do."""
    chance = random.Random(seed)
    plan = chance.choice(["ring", "tree", "central", "hierarchical"])
    ran = nodes(tmp_path, 4, [plan], job=SHARED, silence=SILENCE)
    victims = chance.sample([1, 2, 3], 2)
    until = time.monotonic() + PATIENCE
    while not list((tmp_path / "runs").glob("*/trace.arrow")):
        assert time.monotonic() < until, [each.err.read_text() for each in ran.running]
        time.sleep(0.01)
    for rank in victims:
        time.sleep(chance.random() * 0.4)
        ran.kill(rank, chance.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]))
    first = ran.running[0].end(PATIENCE)
    for rank in victims:
        with contextlib.suppress(ProcessLookupError):
            ran.kill(rank, signal.SIGCONT)
    ended = ran.end()
    assert first.code == 0, [each.err for each in ended]
    found = told(first)[0]
    torch.set_num_threads(1)
    here = pl.train(job(tmp_path, **SHARED), plan, workers=4, engine="virtual", folder=None)
    wanted = {name: value.double().flatten().tolist() for name, value in here.model.state_dict().items()}
    assert gap(found["state"], wanted) < 1e-9
    (run,) = (tmp_path / "runs").iterdir()
    assert pl.replay(run).matches


STEPPED = ("local_sgd:every=3", "diloco:every=4,fragments=2,overlap=2,codec=onebit", "diloco:every=3,overlap=3")


@pytest.mark.soak
@pytest.mark.parametrize("plan", STEPPED)
@pytest.mark.parametrize("seed", range(4))
def test_replicas_continue_after_a_death_at_any_moment(tmp_path: Path, plan: str, seed: int) -> None:
    """The shares of updates that survivors had begun are as the trace says, also where they exchanged meanwhile."""
    ran = nodes(tmp_path, 3, [plan], job={"epochs": 60})
    until = time.monotonic() + PATIENCE
    while not list((tmp_path / "runs").glob("*/trace.arrow")):
        assert time.monotonic() < until, [each.err.read_text() for each in ran.running]
        time.sleep(0.01)
    time.sleep(random.Random(seed).random())
    ran.kill(1 + seed % 2)
    ended = ran.end()
    alive = [told(each)[0] for each in ended if not each.code]
    assert len(alive) >= 2
    assert len({each["summary"]["parameters_sha256"] for each in alive}) == 1
    (run,) = (tmp_path / "runs").iterdir()
    assert pl.replay(run).matches
