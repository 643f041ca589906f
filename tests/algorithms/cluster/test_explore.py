"""Every interleaving of a small cluster keeps the promises, and a planted fault is told as a shortest story."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.algorithms.cluster.explore import Machines, SmallCluster, TooManyWorlds, explore
from paceline.algorithms.cluster.messages import Role
from paceline.algorithms.cluster.worker import WorkerMachine
from paceline.algorithms.server.gates import StaleSynchronous
from tests.algorithms.cluster.planted_faults import PLANTED

SERVERS = (Role.SERVER, Role.WORKER)
SMALL: list[dict[str, Any]] = [
    {},
    {"backups": 0, "losses": 1, "doubles": 1},
    {"shards": 1, "kills": 1},
    {"shards": 1, "losses": 1, "doubles": 1},
    {"shards": 1, "suspicions": 1},
    {"shards": 1, "losses": 1, "gate": StaleSynchronous(0)},
]
#: Two workers, two shards, two batches; and one shard, where the whole would have too many worlds.
LARGE: list[dict[str, Any]] = [
    {"losses": 1},
    {"doubles": 1},
    {"kills": 1, "victims": SERVERS},
    {"backups": 0, "losses": 1, "kills": 1},
    {"backups": 0, "doubles": 1, "kills": 1},
    {"backups": 0, "losses": 1, "doubles": 1, "kills": 1, "victims": SERVERS},
    {"shards": 1, "losses": 1, "doubles": 1, "kills": 1, "victims": (Role.WORKER,)},
    {"shards": 1, "losses": 1, "kills": 1, "victims": SERVERS},
]
#: Where an exploration finds a planted fault.
FINDS: dict[str, dict[str, Any]] = {
    "KnowsBatchesByWorker": {"suspicions": 1},
    "AcknowledgesFirst": {"suspicions": 1},
    "AcknowledgesRepeats": {"suspicions": 1, "doubles": 1},
    "BackupKnowsNoViews": {"suspicions": 1},
    "BackupSkipsGaps": {"losses": 1, "doubles": 1},
    "AlwaysInSync": {"backups": 2, "suspicions": 1, "victims": (Role.SERVER,)},
    "AcknowledgesWhatItInherited": {
        "workers": 1,
        "batches": 1,
        "backups": 2,
        "suspicions": 2,
        "victims": (Role.SERVER,),
    },
}


def _name(settings: dict[str, Any]) -> str:
    return "-".join(f"{name}={value}" for name, value in settings.items() if isinstance(value, int)) or "calm"


@pytest.mark.parametrize(
    "settings",
    [
        *(pytest.param(s, id=_name(s)) for s in SMALL),
        *(pytest.param(s, id=_name(s), marks=pytest.mark.soak) for s in LARGE),
    ],
)
def test_every_interleaving_keeps_the_promises(settings: dict[str, Any]) -> None:
    found = explore(SmallCluster(**settings))
    assert found.story is None, found.story
    assert found.ends > 0


@pytest.mark.parametrize("name", FINDS)
def test_a_planted_fault_is_told_as_a_story(name: str) -> None:
    found = explore(SmallCluster(shards=1, **FINDS[name]), PLANTED[name].machines)
    assert found.story is not None
    assert found.story.splitlines()[0] == "A small cluster goes wrong:"


def test_a_worker_that_never_asks_again_is_found_waiting() -> None:
    class AsksOnce(WorkerMachine):
        def tick(self, now: float) -> list[Any]:
            return []

    found = explore(SmallCluster(shards=1, backups=0, losses=1), Machines(worker=AsksOnce))
    assert found.story is not None
    assert "have not finished" in found.story.splitlines()[-1]


def test_a_shortest_story_names_who_does_what() -> None:
    story = explore(SmallCluster(shards=1, suspicions=1), PLANTED["AcknowledgesFirst"].machines).story
    assert story is not None
    assert "server 0  is taken for dead, and lives" in story
    assert story.endswith("server 1 becomes the primary of shard 0 without acknowledged [0]")


def test_too_many_worlds_are_refused() -> None:
    with pytest.raises(TooManyWorlds, match="more than 100 worlds"):
        explore(SmallCluster(), limit=100)
