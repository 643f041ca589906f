"""Separate processes come to share memory over a store, or agree on why they do not; a process that ends is noticed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from paceline.errors import RankMissing
from paceline.runtime.links import Change, rendezvous
from paceline.runtime.links.membership import LocalProcesses
from paceline.runtime.links.memory import Memory
from paceline.runtime.links.rendezvous import Rendezvous, Shared

context = multiprocessing.get_context("fork")


def meet(rank: int, ranks: int, store: Path, trouble: int | None = None) -> Shared | str:
    def make() -> tuple[list[int], Any]:
        memory = Memory(4096)
        memory.ints(1)[0] = 42
        return [memory.descriptor], memory.size

    point = Rendezvous(dist.FileStore(str(store), ranks), rank, ranks, 60.0, "this test")
    if rank == trouble == 0:
        return point.share(make, unfit="is unfit")
    return point.share(make, lambda size: f"rank {rank} does not like {size}" if rank == trouble else "")


def one(rank: int, ranks: int, store: Path, trouble: int | None, said: Path) -> None:
    shared = meet(rank, ranks, store, trouble)
    if isinstance(shared, Shared):
        (descriptor,) = shared.descriptors
        number = Memory.of(descriptor, shared.said).ints(1)
        number[0] += 1 if rank == 0 else 0
        answer = [number[0] >= 42, shared.pids[rank] == os.getpid(), os.get_inheritable(descriptor)]
    else:
        answer = [shared]
    said.write_text(json.dumps(answer))


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (None, [True, True, False]),
        (0, ["rank 0 is unfit"]),
        (2, ["rank 2 does not like 4096"]),
    ],
)
def test_all_share_or_all_have_the_same_reason(trouble: int | None, expected: list[Any], tmp_path: Path) -> None:
    pool = [
        context.Process(target=one, args=(rank, 3, tmp_path / "store", trouble, tmp_path / f"{rank}"))
        for rank in range(3)
    ]
    for process in pool:
        process.start()
    for process in pool:
        process.join()
        assert process.exitcode == 0
        process.close()
    assert [json.loads((tmp_path / f"{rank}").read_text()) for rank in range(3)] == [expected] * 3


def test_a_rank_on_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = context.Process(target=one, args=(0, 2, tmp_path / "store", None, tmp_path / "0"))
    process.start()
    monkeypatch.setattr(rendezvous, "machine", lambda: "another")
    why = meet(1, 2, tmp_path / "store")
    process.join()
    process.close()
    assert isinstance(why, str)
    assert why.startswith("rank 1 is on another machine")
    assert json.loads((tmp_path / "0").read_text()) == [why]


def test_a_rank_that_does_not_come_is_named() -> None:
    def make() -> tuple[list[int], Any]:
        return [], None

    alone = Rendezvous(dist.HashStore(), 0, 2, 0.1, "this test")
    with pytest.raises(RankMissing, match=r"rank 0 waited in this test for rank 1, which did not come within 0\.1 s"):
        alone.share(make)
    with pytest.raises(RankMissing, match="rank 1 waited in this test for rank 0"):
        Rendezvous(dist.HashStore(), 1, 2, 0.1, "this test").share(make)


def test_a_process_that_ends_leaves_and_a_late_one_joins() -> None:
    def start() -> int:
        if (pid := os.fork()) == 0:
            signal.pause()
        return pid

    def end(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    first = start()
    membership = LocalProcesses(0, [os.getpid(), first])
    assert membership.alive() == {0, 1}
    assert membership.changes() == []
    second = start()
    assert membership.join(second) == 2
    end(first)
    assert (membership.alive(), membership.gone()) == ({0, 2}, {1})
    assert membership.changes() == [Change(2, True), Change(1, False)]
    end(second)
    assert membership.changes() == [Change(2, False)]
    assert membership.changes() == []
    assert LocalProcesses(0, [os.getpid(), first]).gone() == {1}  # it had ended before
    membership.close()
    membership.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
def test_a_listener_of_another_user_is_not_rank_0(tmp_path: Path) -> None:
    """Whoever can write to the store can name a listener there, whose memory would be taken for rank 0's."""
    stranger = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, socket, time; os.setuid(65534);"
            "listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
            f"listener.bind('\\0paceline-{os.getpid()}'); listener.listen(); print(flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    assert stranger.stdout is not None
    stranger.stdout.readline()
    store = dist.HashStore()
    place = {"machine": rendezvous.machine(), "listener": f"\0paceline-{os.getpid()}", "said": 1, "count": 1}
    for key, value in {"place": place, "rank 0": {"process": stranger.pid, "trouble": ""}}.items():
        store.set(key, json.dumps(value))
    got = Rendezvous(store, 1, 2, 10.0, "this test").share(lambda: ([], None))
    stranger.kill()
    stranger.communicate()
    assert got == "rank 1 finds a process of another user (uid 65534) in the place of rank 0"
