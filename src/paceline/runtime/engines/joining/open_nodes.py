"""The machine of a run that lets others in: each gets the job, the keys of the run, and a rank that is free.

The run begins with this machine alone, and others come and go while it trains. Under some synchronous plans no machine
can join a training that has begun: there the run waits for all.

If this machine is lost, one that has joined leads, and opens a door of its own: it has all that travels.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from paceline.algorithms.cluster.launchers import HEAD_PORT
from paceline.algorithms.cluster.vacancies import NO_VACANCY, Vacancies, Vacancy
from paceline.errors import MachineError, PeerLost
from paceline.names import visible
from paceline.plans.plan import Plan
from paceline.runtime.engines.cluster import engine
from paceline.runtime.engines.cluster.group_head import refuses_newcomers
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.cluster.run_spec import RunSpec, make_run_keys, with_keys
from paceline.runtime.engines.cluster.seat import Seat
from paceline.runtime.engines.cluster.successor import Successor
from paceline.runtime.engines.joining.parcel import Parcel, imported_packages, opened, python
from paceline.runtime.engines.outcome import Life, Outcome
from paceline.runtime.engines.setup import Setup
from paceline.runtime.links.pairing.door import Door, listen_anywhere
from paceline.runtime.links.pairing.exchange import Line, package
from paceline.runtime.links.tcp.address import Address, interfaces, usual_host
from paceline.runtime.links.tcp.credentials import LOOPBACK
from paceline.runtime.links.tcp.handshake import RUN_BYTES
from paceline.runtime.links.tcp.tls import MutualTls
from paceline.runtime.runs.record import CheckpointInterval

RANKS = 8  # machines that may take part at the same time, if no number is given
BACK = 2.0  # seconds in which a machine that joins has to accept a connection from this one


def open_roster(plan: str | Plan | None, workers: int | None, address: str | None) -> Roster:
    """Return the roster of a run that other machines may join by a code.

    Args:
        plan: what is trained by.
        workers: how many machines may take part at the same time.
        address: this machine's address, by which others reach it; None: that of the interface which is used by default.

    Raises:
        UsageError: spake2 is not installed.
    """
    package()
    parsed = Plan.parse("sequential" if plan is None else plan, workers)
    why = refuses_newcomers(parsed)
    if why and "workers" not in parsed.options:
        raise MachineError(
            f"under plan {parsed.name} no machine can join once the training has begun, since {why}. So the run waits "
            "for all of them: say how many, as in --workers 2. Under downpour, ssp, ring and others it begins at once"
        )
    count = parsed.workers if "workers" in parsed.options else min(RANKS, parsed.canonical or RANKS)
    head, meeting = Address(address or usual_host(), 0), secrets.token_bytes(RUN_BYTES)
    return Roster(0, count, head, 0, "--workers", meeting, LOOPBACK, open=True, begins_with=0 if why else 1)


@contextlib.contextmanager
def opened_run(
    setup: Setup, roster: Roster, deadline: float, interval: CheckpointInterval | None, backups: int
) -> Iterator[tuple[Roster, Parcel]]:
    """Make the keys of a run, which last as long as the block, and what travels to the machines that join."""
    keys = make_run_keys()
    spec = RunSpec(setup.users_job, setup.plan, setup.limit, roster, deadline, keys, interval, backups)
    parcel = Parcel.of(opened(), spec.pack())
    with with_keys(roster, keys) as placed:
        yield placed, parcel


@contextlib.contextmanager
def train(
    life: Life, roster: Roster, parcel: Parcel, successor: Successor | None = None, backups: int = 1
) -> Iterator[Outcome]:
    """Run a plan on this machine, which leads, and on those that join.

    `successor` is what this machine has if it leads in the place of another one.
    """
    nodes = OpenNodes(roster, parcel, life, successor.seat if successor is not None else None)
    try:
        if successor is None:
            running = engine.train(life, roster, backups, nodes)
        else:
            running = engine.lead(life, successor, backups, nodes)
        with running as outcome:
            yield outcome
    finally:
        nodes.close()


class OpenNodes:
    """`node.ManagedNodes` that come by themselves."""

    def __init__(self, roster: Roster, parcel: Parcel, life: Life, seat: Seat | None) -> None:
        """`seat` is that of a machine that leads in the place of another one: who has joined that one belongs here."""
        self._roster, self._parcel = roster, parcel
        #: Whether a node that is lost is replaced.
        self.replaces = bool(roster.begins_with)
        self._offer = {
            "host": socket.gethostname(),
            "job": life.setup.users_job.name,
            "plan": str(life.setup.plan),
            "python": python(),
            "packages": imported_packages(parcel.modules),
            "files": sorted(parcel.files),
            "elsewhere": parcel.elsewhere,
            "bytes": parcel.bytes,
        }
        self._lock = threading.Lock()
        if seat is None:
            self._vacancies = Vacancies(roster.followers, life.deadline)
        else:
            self._roster = replace(roster, head_rank=seat.machine.rank)
            self._vacancies = Vacancies(self._roster.followers, life.deadline, seat.machine.term, seat.ranks)
            self._vacancies.known |= {each.rank for each in seat.standing.nodes}
        self._fixed = seat is not None and not self.replaces
        self._door: Door | None = None

    def start(self, head: Address) -> None:
        """Open the door, unless the group is fixed already."""
        self._roster = replace(self._roster, head=head)
        if self._fixed:
            return
        assert isinstance(self._roster.credentials, MutualTls)
        keys = self._roster.credentials.folder
        # At every address of this machine, unless only processes of this machine reach the head.
        host = head.host if head.host.startswith("127.") else ""
        networks = [] if host else interfaces()
        listener = listen_anywhere(Address(host, HEAD_PORT))
        self._door = door = Door(listener, keys, self._receive, _print, [each.host for each in networks])
        places = [f"{each.host}, {each.kind}" for each in networks] or [host]
        port = door.address.port
        _print(f"others may join: paceline join {door.code}")
        _print(f"             or: paceline join {head.host}:{port} {door.code}      ({'; '.join(places)})")
        door.open()

    def poll(self) -> None:
        """Nothing has to be looked after: machines come and go by themselves."""

    def started(self) -> None:
        """Let no machine in any longer if the group is fixed from now on."""
        if not self.replaces:
            self.close()

    def lost(self, rank: int) -> None:
        with self._lock:
            self._vacancies.lost(rank)

    def joined(self, rank: int) -> None:
        with self._lock:
            self._vacancies.joined(rank)

    def offer(self) -> Vacancy:
        with self._lock:
            return self._vacancies.offer(time.monotonic())

    def admits(self, vacancy: Vacancy) -> bool:
        with self._lock:
            return self._vacancies.admits(time.monotonic(), vacancy)

    def close(self) -> None:
        """Let no machine in any longer."""
        if self._door is not None:
            self._door.close()

    def _receive(self, line: Line, host: str) -> str:
        """Talk to a machine that knows the code, in a thread of its own; return its name when it has joined."""
        facts = line.receive_json()
        name = f"{str(facts.get('host', '?'))[:64]} ({host})"
        back = _reaches(host, int(facts.get("port", 0)))
        line.send_json(
            {**self._offer, "head": list(self._roster.head), "head_rank": self._roster.head_rank, "back": back}
        )
        answer = line.receive_json()
        if answer.get("answer") != "yes":
            raise PeerLost(name, f"said: {answer.get('why', 'nothing')}")
        vacancy = self.offer()
        line.send_json(vacancy._asdict())
        if vacancy == NO_VACANCY:
            raise PeerLost(
                name, f"has not joined, since all {self._roster.nodes} places are taken; --workers gives more"
            )
        try:
            self._parcel.send(line)
        except BaseException:
            with self._lock:
                self._vacancies.withdraw(vacancy)
            raise
        return name


def _reaches(host: str, port: int) -> bool:
    """Whether this machine can open a connection to a port of another one."""
    try:
        socket.create_connection((host, port), BACK).close()
    except (OSError, OverflowError):
        return False
    return True


def _print(line: str) -> None:
    print(visible(f"paceline: {line}"), file=sys.stderr, flush=True)
