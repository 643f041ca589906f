"""Trials of several ranks: rank 0 decides, and a rank that is lost costs nothing."""

from __future__ import annotations

import json
import pickle
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import FrameError, RunFailed, TuningError
from paceline.interfaces.api.tuning.ranks import ADDRESS, Where, meet
from paceline.planning.tuner.journal import Journal
from paceline.planning.tuner.searches import Search
from paceline.planning.tuner.space import Float, Space
from paceline.planning.tuner.study import Study
from paceline.planning.tuner.trial import Terms, Trial
from paceline.planning.tuner.trials import drive
from paceline.planning.tuner.trials.choice import Here
from paceline.planning.tuner.trials.dispatch import JOINED, Dispatcher
from paceline.planning.tuner.trials.peers import (
    OVER,
    RANK,
    SAID,
    TERMS,
    TUNER,
    Peers,
    RankInfo,
    SearchOutcome,
    answer_of,
    message_of,
    outcome_of,
    pack,
    serve,
    terms_of,
)
from paceline.planning.tuner.trials.processes import Processes
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, listen
from paceline.runtime.links.tcp.handshake import JOB_BYTES, Identity, Peer
from paceline.runtime.links.tcp.hub import Arrived, Gone, Hub, Received
from tests.each import each

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
    return Peers(None, rank_info(0, Address("127.0.0.1", 0)), terms, lambda: SearchOutcome(study.trials, None))


def rank(pool: ThreadPoolExecutor, number: int, head: Address) -> Future[Any]:
    return pool.submit(serve, rank_info(number, head), lambda terms: Processes(curve, terms, 1, threads=1), 60.0)


def test_a_rank_finds_what_one_process_finds() -> None:
    here, ranks = opened("successive_halving:sampler=grid", 9), opened("successive_halving:sampler=grid", 9)
    drive(here, Here(curve, here.report, Terms()))
    peers = head_of(ranks, Terms())
    with ThreadPoolExecutor(1) as pool:
        served = rank(pool, 1, peers.hub.address)
        drive(ranks, Dispatcher(peers, ranks.report))
        assert served.result() == SearchOutcome(ranks.trials, None)
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
                    hub.post(peer, SAID, (0,), [pack((JOINED,))])
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
            return serve(rank_info(1, peers.hub.address), lambda terms: Processes(curve, terms, 1, threads=1), 60.0)

        served = pool.submit(then)
        drive(study, Dispatcher(peers, study.report))
        served.result()
    assert begun.is_set()
    assert [t.status for t in study.trials.values()] == ["done"] * 5


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def is_a_hostile_rank(head: Address, body: bytes) -> None:
    hub = Hub(Identity(Peer(RANK, 7, 1), MEETING, bytes(JOB_BYTES)))
    hub.dial(head, 60.0)
    while True:
        for event in hub.poll(1.0):
            match event:
                case Arrived(peer):
                    hub.post(peer, SAID, (0,), [pack((JOINED,))])
                    hub.post(peer, SAID, (0,), [body])
                case Gone():
                    hub.close()
                    return


def is_a_hostile_head(hub: Hub, kind: int, body: bytes) -> None:
    while True:
        for event in hub.poll(1.0):
            match event:
                case Arrived(peer):
                    hub.post(peer, kind, (), [body])
                case Gone():
                    return


def test_what_a_rank_says_is_never_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, ran = opened("grid", 1), tmp_path / "ran"
    peers = head_of(study, Terms())
    with ThreadPoolExecutor(2) as pool:
        hostile = pool.submit(is_a_hostile_rank, peers.hub.address, pickle.dumps(Payload(ran)))

        def then() -> SearchOutcome:
            hostile.result()
            return serve(rank_info(1, peers.hub.address), lambda terms: Processes(curve, terms, 1, threads=1), 60.0)

        served = pool.submit(then)
        drive(study, Dispatcher(peers, study.report))
        served.result()
    assert not ran.exists()
    assert "sent what is not allowed: a message between ranks cannot be read" in capsys.readouterr().err
    assert [t.status for t in study.trials.values()] == ["done"] * 5


@pytest.mark.parametrize("kind", [TERMS, OVER])
def test_what_a_head_says_is_never_unpickled(kind: int, tmp_path: Path) -> None:
    ran, listener = tmp_path / "ran", listen(Address("127.0.0.1", 0), LOOPBACK)
    hub = Hub(Identity(Peer(TUNER, 0, 1), MEETING, bytes(JOB_BYTES)), LOOPBACK, listener)
    with ThreadPoolExecutor(1) as pool:
        over = pool.submit(is_a_hostile_head, hub, kind, pickle.dumps(Payload(ran)))
        with pytest.raises(FrameError, match="cannot be read"):
            serve(rank_info(1, hub.address), lambda terms: Processes(curve, terms, 1, threads=1), 60.0)
        over.result()
    hub.close()
    assert not ran.exists()


@each(
    "said",
    [
        b"",
        b"\xff",
        b"{}",
        b"[1]",
        b'[["end"]]',
        b'["over"]',
        b'["report",1,2]',
        b'["report",true,2,0.5]',
        b'["end",[{"trial":"0"}]]',
        b'["end",[{"trial":0,"value":1.0,"span":[1,2]}]]',
        b"[" * 100_000,
        b'["died",7]',
    ],
)
def test_a_message_of_another_form_is_refused(said: bytes) -> None:
    for read in (message_of, answer_of, outcome_of, terms_of):
        with pytest.raises(FrameError):
            read(memoryview(said))


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
