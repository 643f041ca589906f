"""Workers of several machines: each rank starts its own, and passes on what they and the tuner say to each other.

rank                                            tuner: the one process that decides and writes the journal
----                                            -----
dials -----------------------------------------> welcomes it with the terms of the trials
starts workers, and says so ------------------>  gives legs to each of them, as to its own
passes on reports, ends and deaths ----------->  answers reports
                                                 tells the outcome, when the search is over

Ranks may come and go at any time. The legs of one that is lost begin again elsewhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import FrameError, RunFailed, TuningError
from paceline.planning.tuner.study import Assignment, TrialRecord
from paceline.planning.tuner.trial import Terms
from paceline.planning.tuner.trials import Ended, Objective
from paceline.planning.tuner.trials.dispatch import DIED, JOINED, WITH_RANK
from paceline.planning.tuner.trials.processes import Message, Processes
from paceline.planning.tuner.trials.worker import END, READY, REPORT, UNUSABLE
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import Credentials, listen
from paceline.runtime.links.tcp.frame import FIRST_KIND
from paceline.runtime.links.tcp.handshake import JOB_BYTES, RUN_BYTES, Identity, Peer
from paceline.runtime.links.tcp.hub import Arrived, Gone, Hub, Received, Unreached
from paceline.runtime.links.tcp.waiting import Pump
from paceline.runtime.runs.schema import from_dict, to_dict

TUNER, RANK = 40, 41  # roles
TERMS, SAID, ANSWERED, ENDED, OVER = range(FIRST_KIND, FIRST_KIND + 5)
LEAVING = 5.0  # seconds until the outcome has arrived everywhere


class RankInfo(NamedTuple):
    """Where the ranks of a tuning meet, and which of them this process is."""

    rank: int
    #: What started the ranks, and how many there are; None if that is open.
    launcher: str
    ranks: int | None
    head: Address
    credentials: Credentials
    #: Known to every rank before they have met.
    meeting: bytes
    #: What rank 0 does as soon as it listens at an address, given what trials run.
    listening: Callable[[Address, Objective], None] = lambda address, objective: None
    #: Whether rank 0 has workers of its own.
    works: bool = True

    @property
    def leads(self) -> bool:
        return self.rank == 0


class Peers:
    """A pool of this process's own workers and those of all ranks that have dialled it."""

    def __init__(
        self, processes: Processes | None, rank_info: RankInfo, terms: Terms, outcome: Callable[[], SearchOutcome]
    ) -> None:
        self.own, self.terms, self.outcome = processes, terms, outcome
        self.workers = (processes.workers if processes else 1) * (rank_info.ranks or 1)
        self._pump = Pump()
        me = Identity(Peer(TUNER, 0, _now()), rank_info.meeting[:RUN_BYTES], bytes(JOB_BYTES))
        self.hub = Hub(me, rank_info.credentials, listen(rank_info.head, rank_info.credentials), pump=self._pump)
        #: Each worker of another rank by its number, and the other way round.
        self.lines: dict[int, tuple[Peer, int]] = {}
        self.numbers: dict[tuple[Peer, int], int] = {}
        self._news: list[Message] = []

    def receive(self, seconds: float) -> list[Message]:
        messages: list[Message] = []
        if self.own is not None:
            messages = self.own.receive(seconds, [self.hub])
        for event in self.hub.poll(0.0 if self.own is not None else seconds):
            match event:
                case Arrived(peer):
                    self.hub.post(peer, TERMS, (), [pack_terms(self.terms)])
                case Received():
                    messages += self._received(event)
                case Gone(peer):
                    messages += self._lost(peer)
        messages, self._news = self._news + messages, []
        return messages

    def send(self, worker: int, message: Any) -> None:
        if worker in self.lines:
            peer, local = self.lines[worker]
            self.hub.post(peer, ANSWERED, (local,), [pack(message)])
        else:
            assert self.own is not None
            self.own.send(worker, message)

    def end(self, worker: int) -> None:
        if worker in self.lines:
            peer, local = self.lines[worker]
            self.hub.post(peer, ENDED, (local,))
        else:
            assert self.own is not None
            self.own.end(worker)

    def close(self) -> None:
        payload = pack(self.outcome())
        for peer in self.hub.peers:
            self.hub.post(peer, OVER, (), [payload])
        self.hub.close(LEAVING)
        self._pump.close()
        if self.own is not None:
            self.own.close()

    def _received(self, event: Received) -> list[Message]:
        """Return what a rank says of a worker; one that says what is not allowed is left."""
        try:
            if event.kind != SAID or len(event.ints) != 1:
                raise FrameError("kind", f"frame {event.kind} with integers {event.ints} is none of a rank")
            return [(self._number(event.peer, event.ints[0]), message_of(event.body))]
        except FrameError as error:
            self.hub.refuse(event.peer, str(error))
            return self._lost(event.peer)

    def _lost(self, peer: Peer) -> list[Message]:
        """Return the deaths of all workers of a rank."""
        return [(number, (DIED, WITH_RANK)) for number, line in self.lines.items() if line[0] == peer]

    def _number(self, peer: Peer, local: int) -> int:
        """Return a worker's number; a rank that has come again keeps none."""
        if (peer, local) not in self.numbers:
            number = (self.own.workers if self.own else 0) + len(self.numbers)
            self.numbers[peer, local], self.lines[number] = number, (peer, local)
        return self.numbers[peer, local]


def serve(rank_info: RankInfo, make: Callable[[Terms], Processes], patience: float) -> SearchOutcome:
    """Let this rank's workers run trials until the search is over, and return its outcome.

    Raises:
        RunFailed: rank 0 cannot be reached, has ended, or sends what is not allowed.
    """
    pump = Pump()
    me = Identity(Peer(RANK, rank_info.rank, _now()), rank_info.meeting[:RUN_BYTES], bytes(JOB_BYTES))
    hub, pool = Hub(me, rank_info.credentials, pump=pump), None
    hub.dial(rank_info.head, patience)
    try:
        while True:
            messages: list[Message] = pool.receive(1.0, [hub]) if pool is not None else []
            for event in hub.poll(0.0 if pool is not None else 1.0):
                match event:
                    case Unreached(address, why):
                        raise RunFailed(f"rank {rank_info.rank} cannot reach rank 0 at {address}: {why}")
                    case Gone(_, why):
                        raise RunFailed(f"rank 0, which decides, {why}; resume the tuning (--resume FOLDER)")
                    case Received(peer, kind, ints, body):
                        if kind == OVER:
                            return outcome_of(body)
                        if kind == TERMS:
                            head, pool = peer, _pool(hub, peer, terms_of(body), make)
                        elif pool is not None and kind == ANSWERED:
                            pool.send(ints[0], answer_of(body))
                        elif pool is not None and kind == ENDED:
                            pool.end(ints[0])
            for local, message in messages:
                hub.post(head, SAID, (local,), [pack(message)])
    finally:
        hub.close()
        pump.close()
        if pool is not None:
            pool.close()


def _pool(hub: Hub, head: Peer, terms: Terms, make: Callable[[Terms], Processes]) -> Processes:
    """Start this rank's workers; where they could not continue the trials of others, say so to the tuner."""
    if terms.states is not None and not terms.states.is_dir():
        why = f"this search continues trials, and the ranks do not share the folder {terms.states}"
        for message in ((JOINED,), (UNUSABLE, why)):
            hub.post(head, SAID, (0,), [pack(message)])
        hub.close()
        raise TuningError(why)
    return make(terms)


def _now() -> int:
    return int(time.time() * 1000)


# What the ranks of a tuning say to each other, as JSON: nothing that comes over a connection is unpickled.
# A message of a rank is a list, its kind first. What has the right form is taken; anything else is a FrameError.

#: What follows the kind of a rank's message.
PARTS: dict[str, tuple[Any, ...]] = {
    JOINED: (),
    READY: (),
    REPORT: (int, int, float),
    END: (list[Ended],),
    DIED: (str,),
    UNUSABLE: (str,),
}


@dataclass(frozen=True)
class SearchOutcome:
    """What a search has come to: its trials by number, and the best of them."""

    trials: dict[int, TrialRecord]
    best: int | None


def pack(value: Any) -> bytes:
    """Return the bytes of a message."""
    return json.dumps(to_dict(value)).encode()


def pack_terms(terms: Terms) -> bytes:
    return pack([terms.seed, None if terms.states is None else str(terms.states)])


def terms_of(body: memoryview) -> Terms:
    seed, states = _parts((int, str | None), _read(body))
    return Terms(seed, None if states is None else Path(states))


def message_of(body: memoryview) -> tuple[Any, ...]:
    """Return what a rank says of a worker."""
    kind, *rest = _list(_read(body)) or [None]
    if not isinstance(kind, str) or kind not in PARTS:
        raise FrameError("body", f"{kind!r:.40} is nothing that a rank says")
    return kind, *_parts(PARTS[kind], rest)


def answer_of(body: memoryview) -> bool | list[Assignment]:
    """Return what a worker is sent: whether its trial is to stop, or legs."""
    value = _read(body)
    if isinstance(value, bool):
        return value
    (legs,) = _parts((list[Assignment],), [value])
    assert isinstance(legs, list)
    return legs


def outcome_of(body: memoryview) -> SearchOutcome:
    (outcome,) = _parts((SearchOutcome,), [_read(body)])
    assert isinstance(outcome, SearchOutcome)
    return outcome


def _read(body: memoryview) -> Any:
    try:
        return json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise FrameError("body", f"a message between ranks cannot be read: {error}") from error


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FrameError("body", f"a message between ranks is {value!r:.40}, and no list")
    return value


def _parts(kinds: Sequence[Any], values: Any) -> list[Any]:
    """Return the parts of a message, of which each has its type."""
    try:
        return [from_dict(kind, value) for kind, value in zip(kinds, _list(values), strict=True)]
    except (ValueError, TypeError) as error:
        raise FrameError("body", f"a message between ranks cannot be read: {error}") from error
