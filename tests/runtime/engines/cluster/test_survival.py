"""Real faults: processes of a run are killed or stopped while it trains. It ends, has applied every batch once, and
is replayed bit for bit.

Workers hold before their last batches until the last fault is repaired, so no test depends on how fast a machine is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from paceline.interfaces.testing.survival.faults import Fault, FaultKind, Injector, Picture, Times, times_of
from paceline.interfaces.testing.survival.nodes import NodeProgram, Nodes, started
from paceline.interfaces.testing.survival.proofs import applied_once, ended_well, left_behind, replayed
from paceline.runtime.runs.live import EventKind, Phase, ProcessKind, RunEvent, read_events, read_live
from paceline.runtime.runs.record import read_record
from paceline.runtime.runs.trace import Kind, Trace

PATIENCE = 120.0  # seconds that something may take on a busy machine
BATCHES = 600


class Scene:
    """One run, and the faults that are done to it."""

    def __init__(self, ran: Nodes, seed: int = 0) -> None:
        self.ran, self.injector = ran, Injector(ran, random.Random(seed))
        self.until(self._trains, "the training")

    def _trains(self) -> bool:
        live = read_live(self.ran.run) if self.ran.run is not None else None
        return live is not None and live.phase is Phase.TRAINING

    @property
    def events(self) -> list[RunEvent]:
        return read_events(self.ran.run) if self.ran.run is not None else []

    @property
    def picture(self) -> Picture:
        return Picture(self.events)

    def until(self, done: Callable[[], object], what: str) -> None:
        """Wait until something is true."""
        end = time.monotonic() + PATIENCE
        while not done():
            self.injector.poll()
            assert time.monotonic() < end, f"{what} did not come: {[n.out.read_text() for n in self.ran.running]}"
            time.sleep(0.02)

    def do(self, kind: FaultKind, seconds: float = 0.0) -> Fault:
        """Do a fault to a process that chance chooses."""
        self.until(lambda: self.picture.candidates(kind), f"a victim of {kind}")
        fault = self.injector.inject(kind, self.picture, seconds)
        assert fault is not None
        return fault

    def mended(self, fault: Fault, *names: str, copies: int = 2) -> Times:
        """Wait until each of these times is known, and what was stopped goes on."""

        def done() -> bool:
            times = times_of(fault, self.events, copies)
            return all(getattr(times, name) is not None for name in names) and self.injector.poll()

        self.until(done, f"the end of {fault}: {names}")
        return times_of(fault, self.events, copies)

    def finish(self, killed: Sequence[int] = ()) -> Path:
        """Let the run end, and prove what must hold of it."""
        self.ran.release()
        codes = self.ran.wait(PATIENCE)
        assert not (wrong := ended_well(self.ran, codes, set(killed))), wrong
        assert codes[0] == 0
        run = self.ran.run
        assert run is not None
        assert not (wrong := applied_once(run, BATCHES)), wrong
        assert not (wrong := left_behind(self.ran)), wrong
        return run


def test_worker_primary_backup_and_desk_are_killed_in_one_run(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("downpour:shards=2", 3, BATCHES, 0.01), held=True) as (ran, _):
        scene = Scene(ran)
        scene.mended(scene.do(FaultKind.KILL_BACKUP), "noticed", "replicated")
        scene.mended(scene.do(FaultKind.KILL_WORKER), "noticed", "replaced")
        scene.mended(scene.do(FaultKind.KILL_PRIMARY), "noticed", "served", "replicated")
        scene.mended(scene.do(FaultKind.KILL_DESK), "noticed", "replaced")
        _live_names_every_process(scene)
        run = scene.finish()
        assert read_record(run).summary.deaths != ()  # type: ignore[union-attr]
        assert len(Trace.open(run / "trace.arrow").of_kind(Kind.DEATH)) == 1
        assert not (wrong := replayed(run)), wrong


def test_replicas_go_on_with_their_centre_when_a_worker_and_the_primary_are_killed(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("diloco:mode=asynchronous,every=3", 2, BATCHES, 0.01), held=True) as (ran, _):
        scene = Scene(ran)
        scene.mended(scene.do(FaultKind.KILL_PRIMARY), "noticed", "served")
        scene.mended(scene.do(FaultKind.KILL_WORKER), "noticed", "replaced")
        run = scene.finish()
        assert not (wrong := replayed(run)), wrong


def _live_names_every_process(scene: Scene) -> None:
    """live.json comes to name the processes that the events tell of, by what they do."""

    def same() -> bool:
        live = read_live(scene.ran.run)  # type: ignore[arg-type]
        assert live is not None
        named = {(p.kind, p.number): p.process.pid for p in live.processes if p.kind is not ProcessKind.AGENT}
        assert {p.rank for p in live.processes if p.kind is ProcessKind.AGENT} == {0, 1, 2}
        return named == {key: event.pid for key, event in scene.picture.alive.items()}

    scene.until(same, "live.json with the processes that run")


def test_a_stopped_primary_is_replaced_and_becomes_a_backup_when_it_wakes(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("ssp:bound=3", 2, BATCHES, 0.01), held=True) as (ran, _):
        scene = Scene(ran)
        fault = scene.do(FaultKind.STOP_PRIMARY, 4.0)
        scene.mended(fault, "noticed", "served", "replicated")  # two nodes: none but the sleeper can be the backup
        assert scene.picture.views[0][1] == fault.number
        run = scene.finish()
        assert not (wrong := replayed(run)), wrong


def test_a_lost_node_is_replaced_by_spares_on_others_and_takes_part_when_it_is_started_again(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("downpour:shards=2", 3, BATCHES, 0.01), held=True) as (ran, head):
        scene = Scene(ran)
        fault = scene.do(FaultKind.KILL_NODE)
        scene.until(lambda: all(_apart(scene, shard, fault.rank) for shard in (0, 1)), "backups on the other nodes")
        ran.start(fault.rank, None, head)
        scene.until(lambda: _works(scene, fault.rank), "a worker and a spare on a node that was started again")
        run = scene.finish([fault.rank])
        nodes = 3
        for event in read_events(run):
            if event.kind is EventKind.SERVING:
                assert len({number % nodes for number in event.members}) == len(event.members)
        assert not (wrong := replayed(run)), wrong


@pytest.mark.soak
def test_a_node_of_a_group_that_is_started_again_joins_it(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("ring", 3, BATCHES, 0.01), held=True) as (ran, head):
        scene = Scene(ran)
        fault = scene.do(FaultKind.KILL_NODE)
        scene.until(lambda: scene.picture.ranks == {0, 1, 2} - {fault.rank}, "a group of the others")
        ran.start(fault.rank, None, head)
        scene.until(lambda: scene.picture.ranks == {0, 1, 2}, "a group with the node that was started again")
        run = scene.finish([fault.rank])
        assert not (wrong := replayed(run)), wrong


def _works(scene: Scene, rank: int) -> bool:
    kinds = [event.process for event in scene.picture.alive.values() if event.rank == rank]
    return kinds.count(ProcessKind.WORKER) == 1 and kinds.count(ProcessKind.SERVER) >= 1


def _apart(scene: Scene, shard: int, lost: int) -> bool:
    members = scene.picture.views.get(shard, ())  # none before its first view was written
    return len(members) == 2 and all(number % 3 != lost for number in members)


def test_a_primary_is_killed_and_a_desk_is_stopped_under_backup(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("backup:backups=1", 3, BATCHES, 0.01), held=True) as (ran, _):
        scene = Scene(ran)
        scene.mended(scene.do(FaultKind.KILL_PRIMARY), "noticed", "served")  # some pushes of a round may be held
        scene.mended(scene.do(FaultKind.STOP_DESK, 10.0), "noticed", "replaced")
        run = scene.finish()
        assert not (wrong := replayed(run)), wrong


def test_a_rank_of_a_ring_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("ring", 3, BATCHES, 0.005), held=True) as (ran, _):
        scene = Scene(ran)
        fault = scene.do(FaultKind.KILL_WORKER)
        scene.mended(fault, "noticed", "replaced")
        run = scene.finish()
        assert read_record(run).summary.deaths == (fault.rank,)  # type: ignore[union-attr]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_five_faults_that_chance_draws(seed: int, tmp_path: Path) -> None:
    chance, plan = random.Random(seed), ("downpour:shards=2", "downpour", "ssp:bound=2")[seed % 3]
    kinds = [kind for kind in FaultKind if kind.value.split()[1] in ("worker", "primary", "backup", "desk")]
    with started(tmp_path, NodeProgram(plan, 3, BATCHES, 0.01), held=True) as (ran, _):
        scene = Scene(ran, seed)
        for kind in [chance.choice(kinds) for _ in range(5)]:
            fault = scene.do(kind, 3.0 + chance.random() * 3)
            names = {"worker": "noticed", "desk": "replaced"}.get(kind.value.split()[1], "replicated")
            scene.mended(fault, names)
        run = scene.finish()
        assert not (wrong := replayed(run)), wrong
