"""The head of a run is killed or stopped: the next rank leads, into a folder of its own, and nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.interfaces.testing.survival.faults import Picture
from paceline.interfaces.testing.survival.nodes import HELD_AFTER, NodeProgram, Nodes, started
from paceline.interfaces.testing.survival.proofs import applied_once, left_behind, replayed
from paceline.runtime.runs.live import EventKind, Phase, ProcessKind, read_events, read_live
from paceline.runtime.runs.record import read_record
from paceline.runtime.runs.trace import Kind, Trace

PATIENCE = 120.0  # seconds that something may take on a busy machine
BATCHES = 600
STEP = 0.005


def trains(run: Path, updates: int = 50) -> bool:
    """Whether a run is in its training, and beyond so many updates."""
    live = read_live(run)
    return live is not None and live.phase is Phase.TRAINING and live.updates > updates


def _views(run: Path) -> list[tuple[int, ...]]:
    """Return the servers of each shard; none under plans without servers."""
    return list(Picture(read_events(run)).views.values())


def _nodes_of(servers: tuple[int, ...]) -> set[int]:
    return {number % 3 for number in servers}


class Heads:
    """A run whose heads are lost one after another."""

    def __init__(self, ran: Nodes, resumed: Path | None = None) -> None:
        self.ran, self.runs = ran, [resumed] if resumed else []
        if resumed is None:
            self.leads()

    def leads(self) -> Path:
        """Wait until another head trains; return its folder."""
        found: list[Path] = []

        def leads() -> bool:
            found[:] = sorted(set((self.ran.folder / "runs").glob("*/run.json")) - {r / "run.json" for r in self.runs})
            return bool(found) and trains(found[0].parent)

        self.until(leads, "the training under a head")
        self.runs.append(found[0].parent)
        return self.runs[-1]

    def until(self, done: object, what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not done():  # type: ignore[operator]
            assert time.monotonic() < end, f"{what} did not come: {[n.out.read_text() for n in self.ran.running]}"
            time.sleep(0.02)

    def kill(self, rank: int, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.ran.running[rank].pid, how)

    def machine(self, rank: int, how: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        mark = f"node-{rank}.txt"
        for process in self.ran.processes():
            if os.readlink(f"/proc/{process.pid}/fd/1").endswith(mark):
                os.kill(process.pid, how)

    def finish(self, killed: list[int], codes: dict[int, int]) -> Path:
        """Let the run end, and prove what must hold of it."""
        self.ran.release()
        ended = self.ran.wait(PATIENCE)
        outputs = [node.out.read_text(errors="replace") for node in self.ran.running]
        assert ended == [codes.get(rank, 0) for rank in range(len(ended))], outputs
        assert "Traceback" not in "".join(outputs), outputs
        run = self.runs[-1]
        record = read_record(run)
        assert record.status == "done"
        assert record.summary is not None
        assert record.summary.deaths == tuple(killed)
        assert not (wrong := applied_once(run, self.ran.program.batches)), wrong
        assert not (wrong := replayed(run)), wrong
        assert not (wrong := left_behind(self.ran)), wrong
        assert Trace.open(run / "trace.arrow").of_kind(Kind.DEATH)["worker"].tolist() == killed
        assert sorted(set(range(3)) - set(killed)) == sorted(
            set(Trace.open(run / "trace.arrow").of_kind(Kind.COMPUTE)["worker"].tolist()) - set(killed)
        )
        return run


@pytest.mark.parametrize("plan", ["downpour:shards=2", "ring"])
def test_the_head_is_killed_and_the_next_rank_leads(tmp_path: Path, plan: str) -> None:
    with started(tmp_path, NodeProgram(plan, 3, BATCHES, STEP), held=True) as (ran, _):
        heads = Heads(ran)
        heads.kill(0)
        heads.leads()
        run = heads.finish([0], {0: -signal.SIGKILL})
        events = read_events(run)
        assert {e.rank for e in events if e.kind is EventKind.STARTED and e.process is ProcessKind.WORKER} == {0, 1, 2}
        rows = Trace.open(run / "trace.arrow").of_kind(Kind.COMPUTE)
        assert 0 in rows["worker"]  # what the first head had recorded of its own worker, too


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["ring", "local_sgd:every=4"])
def test_the_head_of_a_group_is_killed_before_the_first_update(tmp_path: Path, plan: str) -> None:
    with started(tmp_path, NodeProgram(plan, 3, BATCHES, STEP), held=True) as (ran, _):
        while not (ran.run and read_events(ran.run)):  # all ranks have come, and the head's worker is started
            time.sleep(0.001)
        heads = Heads(ran, ran.run)
        heads.kill(2, signal.SIGSTOP)  # its worker is not ready
        heads.kill(0)
        heads.kill(2, signal.SIGCONT)
        heads.leads()
        ran.release()
        assert ran.wait(PATIENCE) == [-signal.SIGKILL, 0, 0], [node.out.read_text() for node in ran.running]
        run = heads.runs[-1]
        assert not (wrong := applied_once(run, BATCHES)), wrong
        assert not (wrong := replayed(run)), wrong


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["downpour:shards=2", "ssp:bound=2", "backup:backups=1"])
def test_a_stopped_head_is_replaced_and_comes_back_when_it_wakes(tmp_path: Path, plan: str) -> None:
    with started(tmp_path, NodeProgram(plan, 3, BATCHES, STEP), held=True) as (ran, _):
        heads = Heads(ran)
        heads.machine(0, signal.SIGSTOP)
        run = heads.leads()
        heads.machine(0, signal.SIGCONT)

        def is_back() -> bool:
            begun = [e for e in read_events(run) if e.kind is EventKind.STARTED and e.process is ProcessKind.WORKER]
            return len({e.pid for e in begun if e.rank == 0}) == 2

        heads.until(is_back, "another worker of the first head's node")
        heads.finish([0], {})
        assert "rank 1 leads it now" in ran.running[0].out.read_text()


@pytest.mark.soak
def test_two_heads_are_stopped_of_which_the_first_is_back_already(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("downpour", 3, BATCHES, STEP), held=True) as (ran, _):
        heads = Heads(ran)
        for rank in (0, 1):
            heads.machine(rank, signal.SIGSTOP)
            run = heads.leads()
            heads.machine(rank, signal.SIGCONT)
            heads.until(lambda: len(_workers_of(run, rank)) == 2, "another worker of the node that led before")  # noqa: B023
        heads.finish([0, 1], {})


def _workers_of(run: Path, rank: int) -> set[int]:
    begun = [e for e in read_events(run) if e.kind is EventKind.STARTED and e.process is ProcessKind.WORKER]
    return {e.pid for e in begun if e.rank == rank}


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["ring", "local_sgd:every=4"])
def test_a_stopped_head_of_a_group_is_replaced_and_ends_when_it_wakes(tmp_path: Path, plan: str) -> None:
    with started(tmp_path, NodeProgram(plan, 3, BATCHES, STEP), held=True) as (ran, _):
        heads = Heads(ran)
        heads.machine(0, signal.SIGSTOP)
        heads.leads()
        heads.machine(0, signal.SIGCONT)
        heads.until(lambda: ran.running[0].process.exitcode is not None, "the end of the first head")
        heads.finish([0], {0: 1})
        assert "rank 1 leads it now" in ran.running[0].out.read_text()


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["downpour:shards=2", "ring"])
def test_two_heads_are_killed_one_after_another(tmp_path: Path, plan: str) -> None:
    with started(tmp_path, NodeProgram(plan, 3, BATCHES, STEP), held=True) as (ran, _):
        heads = Heads(ran)
        heads.kill(0)
        run = heads.leads()
        heads.until(lambda: all(len(_nodes_of(each) - {0}) == 2 for each in _views(run)), "a backup of every shard")
        heads.kill(1)
        heads.leads()
        heads.finish([0, 1], {0: -signal.SIGKILL, 1: -signal.SIGKILL})


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["downpour:shards=2", "ring", "local_sgd:every=4"])
def test_the_head_of_a_resumed_run_is_killed_and_the_next_rank_has_what_came_before(tmp_path: Path, plan: str) -> None:
    # Three workers are held after so many passes in each life: more batches are left for the head that takes over.
    program = NodeProgram(plan, 3, 2 * 3 * HELD_AFTER + BATCHES, STEP, checkpoint_every=20)
    with started(tmp_path, program, held=True) as (ran, _):
        before = Heads(ran)
        before.until(lambda: [c for c in before.runs[0].glob("checkpoints/*") if c.name.isdigit()], "a checkpoint")
        ran.kill()
    (before.runs[0] / "live.json").unlink()
    updates = max(int(each.name) for each in before.runs[0].glob("checkpoints/*") if each.name.isdigit())
    with started(tmp_path / "again", replace(program, resume=before.runs[0]), held=True) as (ran, _):
        heads = Heads(ran, before.runs[0])
        heads.until(lambda: trains(before.runs[0], updates + 20), "the training of the resumed run")
        heads.kill(0)
        heads.leads()
        run = heads.finish([0], {0: -signal.SIGKILL})
        assert len(read_record(run).lives) == 2
        assert len(Trace.open(run / "trace.arrow").of_kind(Kind.RESUME)) == (2 if "shards" in plan else 1)


@pytest.mark.soak
def test_the_other_of_two_leads_where_the_head_is_known_to_be_dead(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("ring", 2, BATCHES, STEP), held=True) as (ran, _):
        heads = Heads(ran)
        heads.kill(0)
        heads.leads()
        ran.release()
        assert ran.wait(PATIENCE) == [-signal.SIGKILL, 0]


@pytest.mark.soak
def test_of_two_nodes_none_goes_on_without_a_head_that_is_silent(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("ring", 2, BATCHES, STEP), held=True) as (ran, _):
        heads = Heads(ran)
        heads.machine(0, signal.SIGSTOP)
        heads.until(lambda: ran.running[1].process.exitcode is not None, "the end of rank 1")
        assert ran.running[1].process.exitcode == 1
        assert "no majority" in ran.running[1].out.read_text()
