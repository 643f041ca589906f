"""Trials of several ranks: rank 0 decides, and a rank that is lost costs nothing."""

from __future__ import annotations

import json
import pickle
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paceline.api.tuning.ranks import ADDRESS, Where, meet
from paceline.errors import RunFailed, TuningError
from paceline.links.tcp.address import Address
from paceline.links.tcp.credentials import LOOPBACK
from paceline.links.tcp.events import Arrived, Received
from paceline.links.tcp.handshake import JOB_BYTES, Identity, Peer
from paceline.links.tcp.hub import Hub
from paceline.tuner.drive import drive
from paceline.tuner.journal import Journal
from paceline.tuner.searches import Search
from paceline.tuner.space import Float, Space
from paceline.tuner.study import Study
from paceline.tuner.trial import Trial
from paceline.tuner.trials import Terms
from paceline.tuner.trials.dispatch import JOINED, Dispatcher
from paceline.tuner.trials.here import Here
from paceline.tuner.trials.peers import RANK, SAID, TERMS, Peers, RankInfo, serve
from paceline.tuner.trials.processes import Processes

MEETING = bytes(16)
SPACE = Space({"x": Float(0, 1, count=5)})


def curve(trial: Trial) -> float:
    for step in range(trial.start + 1, trial.stop + 1):
        trial.report((trial["x"] - 0.3) ** 2 + 1 / step, step)
        if trial.should_prune():
            break
    return trial.value


def opened(search: str, max_t: int) -> Study:
    proposals, scheduler, total = Search.parse(search).open(SPACE, None, max_t, 0, True, continues=False)
    return Study(proposals, scheduler, Journal(None), True, total)


def rank_info(rank: int, head: Address) -> RankInfo:
    return RankInfo(rank, "test", 2, head, LOOPBACK, MEETING, works=False)


def head_of(study: Study, terms: Terms) -> Peers:
    return Peers(None, rank_info(0, Address("127.0.0.1", 0)), terms, lambda: sorted(study.trials))


def rank(pool: ThreadPoolExecutor, number: int, head: Address) -> Future[Any]:
    return pool.submit(serve, rank_info(number, head), lambda terms: Processes(curve, terms, 1, threads=1), 60.0)


def test_a_rank_finds_what_one_process_finds() -> None:
    here, ranks = opened("successive_halving:sampler=grid", 9), opened("successive_halving:sampler=grid", 9)
    drive(here, Here(curve, here.report, Terms()))
    peers = head_of(ranks, Terms())
    with ThreadPoolExecutor(1) as pool:
        served = rank(pool, 1, peers.hub.address)
        drive(ranks, Dispatcher(peers, ranks.report))
        assert served.result() == sorted(ranks.trials)
    assert {n: (t.value, t.reports) for n, t in here.trials.items()} == {
        n: (t.value, t.reports) for n, t in ranks.trials.items()
    }


def leaves_with_a_leg(head: Address) -> None:
    """Be a rank that says it has a worker, is given a leg, and is lost."""
    hub = Hub(Identity(Peer(RANK, 7, 1), MEETING, bytes(JOB_BYTES)))
    hub.dial(head, 60.0)
    while True:
        for event in hub.poll(1.0):
            match event:
                case Received(peer, kind, _, _) if kind == TERMS:
                    hub.post(peer, SAID, (0,), [pickle.dumps((JOINED,))])
                case Received():
                    hub.close()
                    return
                case Arrived():
                    pass


def test_the_leg_of_a_lost_rank_begins_again() -> None:
    study = opened("grid", 1)
    peers = head_of(study, Terms())
    with ThreadPoolExecutor(2) as pool:
        lost = pool.submit(leaves_with_a_leg, peers.hub.address)
        begun = threading.Event()

        def then() -> Any:
            lost.result()
            begun.set()
            return serve(
                rank_info(1, peers.hub.address), lambda terms: Processes(curve, terms, 1, threads=1), 60.0
            )  # fmt: skip

        served = pool.submit(then)
        drive(study, Dispatcher(peers, study.report))
        served.result()
    assert begun.is_set()
    assert [t.status for t in study.trials.values()] == ["done"] * 5


def test_ranks_that_share_no_folder_refuse_a_search_that_continues_trials(tmp_path: Path) -> None:
    study = opened("successive_halving:sampler=grid", 9)
    peers = head_of(study, Terms(0, tmp_path / "elsewhere"))
    with ThreadPoolExecutor(1) as pool:
        served = rank(pool, 1, peers.hub.address)
        with pytest.raises(TuningError, match="do not share the folder"):
            drive(study, Dispatcher(peers, study.report))
        with pytest.raises(TuningError, match="do not share the folder"):
            served.result()


def test_the_first_task_of_an_array_leads_and_the_next_one_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    places: list[RankInfo] = []

    def second(given: RankInfo | None, folder: Path | None) -> str:
        assert given is not None
        places.append(given)
        if given.leads:
            return "led"
        first_may_end.set()
        raise RunFailed("rank 0 has ended")

    def first(given: RankInfo | None, folder: Path | None) -> Path:
        assert given is not None
        assert folder is not None
        assert given.leads
        given.listening(Address("127.0.0.1", 4321), None)  # type: ignore[arg-type]
        assert json.loads((folder / ADDRESS).read_text()) == ["127.0.0.1", 4321]
        other = pool.submit(meet, Where("cluster"), tmp_path, "x", second)
        first_may_end.wait(60)
        others.append(other)
        return folder

    first_may_end, others = threading.Event(), list[Future[Any]]()
    with ThreadPoolExecutor(1) as pool:
        assert meet(Where("cluster"), tmp_path, "x", first) == tmp_path / "tune-x-array-12"
        assert others[0].result() == "led"
    assert (places[0].rank, places[0].head) == (4, Address("127.0.0.1", 4321))
