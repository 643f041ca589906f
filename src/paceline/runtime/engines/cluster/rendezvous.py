"""How the nodes of a run meet at the head, and see that they would train the same.

agent                                   head
-----                                   ----
dials, says its terms ----------------> are they the head's? is the rank new?
takes them <--------------------------- rank 0's parameters, if the node's model starts from others
answers with its own clock <----------- what is your clock? (of another machine, a few times)
begins <------------------------------- the name of the run, when every rank is there
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter_ns as now
from typing import NamedTuple

from torch import Tensor, nn

from paceline.errors import MachineError, PacelineError, PeerLost, RunFailed, RunOver, UsageError
from paceline.runtime.engines.cluster.control import (
    AGENT,
    Clock,
    Message,
    Refused,
    Register,
    Standing,
    State,
    Welcome,
    pack,
    state_message,
    state_of,
    unpack,
)
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.cluster.terms import Terms, difference
from paceline.runtime.engines.signals import termination
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.credentials import listen
from paceline.runtime.links.tcp.frame import Limits
from paceline.runtime.links.tcp.handshake import JOB_BYTES, Identity, Peer
from paceline.runtime.links.tcp.hub import Arrived, Event, Gone, Hub, Policy, Received, Unreached
from paceline.runtime.links.tcp.link import raw
from paceline.runtime.links.tcp.waiting import Pump, Timing
from paceline.training.parameters.layout import state_tensors
from paceline.training.parameters.worker_state import WorkerState

#: Looks after the nodes that the head has started while they are waited for, and raises what ends the run.
Look = Callable[[], None]

LOOK = 0.05  # seconds between two looks at the deadline
LATE = 5.0  # seconds in which nodes that join are answered that the run cannot begin
CLOCKS = 5  # times that a machine's clock is asked for; the quickest answer counts
#: The head may be silent for so many times as long as others where nothing takes its place: to give it up ends the run.
HEAD_PATIENCE = 4
#: Nodes of which some are a majority without the head.
MAJORITY = 3


@dataclass
class Node:
    """What the head knows of one node."""

    peer: Peer
    register: Register
    #: Nanoseconds by which the head's clock is ahead, and the round trip of the answer that says so.
    ahead: int = 0
    round_trip: int = 1 << 62
    clocks: int = 0

    @property
    def known(self) -> bool:
        """Whether its clock is known: it is the head's, or was asked for often enough."""
        return self.register.boot == boot() or self.clocks >= CLOCKS

    def add_clock_sample(self, clock: Clock) -> None:
        """Take an answer to `Clock`."""
        arrived = now()
        self.clocks += 1
        if arrived - clock.head < self.round_trip:
            self.round_trip = arrived - clock.head
            self.ahead = (clock.head + arrived) // 2 - clock.agent


def boot() -> str:
    """Processes with the same answer read the same clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def own_host(head: Address) -> str:
    """Return the address of this machine from which the head is reached, so that others reach this machine there."""
    family, _, _, _, target = socket.getaddrinfo(*head, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


def open_hub(roster: Roster, timing: Timing, limits: Limits, deadline: float) -> tuple[Roster, Hub, Pump]:
    """Return this node's connections to other agents, and the roster with the head's address.

    Every node dials the head, and listens for the others, should it lead.

    Raises:
        MachineError: the head's address is none of this machine, or in use.
        SecurityError: other machines could reach it, and the credentials keep no one out.
        RunFailed: the head has not said in time where it listens.
    """
    # An agent that was started again replaces the one before, also if its machine's clock is behind.
    incarnation = roster.attempt or int(time.time() * 1000)
    me = Identity(Peer(AGENT, roster.rank, incarnation), roster.meeting, bytes(JOB_BYTES))
    listener = None
    if roster.leads:
        roster, listener = _listening(roster)
    else:
        roster = roster.located(deadline)
        patience = 2 if roster.moves and roster.nodes >= MAJORITY else HEAD_PATIENCE  # to replace a head costs seconds
        timing = timing._replace(silence=timing.silence * patience)
        if roster.moves:
            listener = listen(Address(own_host(roster.head), 0), roster.credentials)
    pump = Pump(timing.heartbeat)
    rivals = () if roster.apart else (AGENT,)  # Ray replaces a node at once, and means it
    hub = Hub(me, roster.credentials, listener, policy=Policy(limits, timing, rivals=rivals), pump=pump)
    if not roster.leads:
        for address in (roster.head, *roster.others):
            hub.dial(address, deadline)
    return roster, hub, pump


def _listening(roster: Roster) -> tuple[Roster, socket.socket]:
    """Listen as the head, and say where."""
    try:
        listener = listen(roster.head, roster.credentials)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error  # its own text repeats the address
        raise MachineError(
            f"rank 0 cannot listen at {roster.head}: {why}; set PACELINE_HEAD=host:port, alike for all ranks, to an "
            "address of the machine of rank 0 and a port that is free"
        ) from error
    try:
        return roster.listening(listener.getsockname()[1]), listener
    except RunFailed:
        listener.close()
        raise


def send(hub: Hub, peer: Peer, message: Message, content: Sequence[Buffer] = ()) -> None:
    """Post a message; of a peer that is gone, the hub reports it."""
    hub.post(peer, *pack(message, content))


@dataclass
class Registry:
    """The head's list of the other nodes: those that have introduced themselves."""

    hub: Hub
    roster: Roster
    terms: Terms
    #: The model as it is before the first update.
    module: nn.Module
    nodes: dict[int, Node] = field(default_factory=dict)

    def handle_message(self, peer: Peer, message: Message) -> Node | None:
        """Take a message; return its node if that has now said all that it has to.

        Raises:
            UsageError: the node would train something else, or its rank is taken.
        """
        rank = peer.number
        if isinstance(message, Register):
            if wrong := difference(self.terms, message.terms, rank):
                raise UsageError(wrong)
            if rank not in self.roster.followers or rank in self.nodes:
                raise UsageError(second(rank))
            self.nodes[rank] = Node(peer, message)
            if message.terms.initial_sha256 != self.terms.initial_sha256:
                initial, content = state_message(0, WorkerState(state_tensors(self.module)))
                send(self.hub, peer, initial, [raw(content)])
        elif isinstance(message, Clock) and rank in self.nodes:
            self.nodes[rank].add_clock_sample(message)
        node = self.nodes.get(rank)
        if node is None or node.known:
            return node
        send(self.hub, peer, Clock(now()))
        return None


def second(rank: int) -> str:
    """Say that two nodes have the same rank."""
    return (
        f"a second node says that it is rank {rank}, and the first is connected: every node needs a rank of its own. "
        "If it is of another run, give that run another PACELINE_RUN and PACELINE_HEAD"
    )


def gather(registry: Registry, deadline: float, poll: Look | None = None) -> None:
    """Wait for every node; they wait for their welcome.

    With `poll` the head has started the nodes: one that has ended is waited for again.

    Raises:
        UsageError: a node would train something else; all nodes are told.
        RunFailed: a node has not come before the deadline, or has ended.
    """
    hub, roster, nodes = registry.hub, registry.roster, registry.nodes
    end = time.monotonic() + deadline
    try:
        while not nodes.keys() >= roster.awaited or not all(node.known for node in nodes.values()):
            termination.check()
            for event in hub.poll(LOOK):
                match event:
                    case Received(peer, kind, ints, body):
                        registry.handle_message(peer, unpack(kind, ints, body)[0])
                    case Gone(peer, why):
                        if poll is None:
                            raise RunFailed(f"rank {peer.number} has left before the start: it {why}")
                        nodes.pop(peer.number, None)
            if poll is not None:
                poll()
            if time.monotonic() >= end:
                raise RunFailed(_missing(roster, nodes, deadline))
    except (RunFailed, UsageError) as error:
        refuse(hub, roster, error, LATE if time.monotonic() < end else 0.0)
        raise


def refuse(hub: Hub, roster: Roster, error: PacelineError, late: float) -> None:
    """Tell every node that the run cannot begin, also those that come so many seconds later; each leaves then."""
    begun, notified = time.monotonic(), set[Peer]()
    while time.monotonic() < begun + LATE:
        if not hub.peers and (len(notified) >= len(roster.followers) or time.monotonic() >= begun + late):
            return
        for peer in hub.peers - notified:
            send(hub, peer, Refused(str(error), error.exit_code))
            notified.add(peer)
        hub.poll(LOOK)


def _missing(roster: Roster, nodes: dict[int, Node], deadline: float) -> str:
    missing = [str(rank) for rank in sorted(roster.awaited) if rank not in nodes]
    who = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {', '.join(missing)} have"
    return (
        f"{who} not come to {roster.head} within {deadline:g} s, of {roster.nodes} that {roster.launcher} says there "
        "are; look at what they printed, or give a longer timeout (timeout=..., --timeout)"
    )


class Dismissed(RunFailed):
    """The run goes on without this node, which may come back."""

    def __init__(self, why: str, roster: Roster | None) -> None:
        """`roster` is the place that it may take then; None if the run takes no node any longer."""
        self.roster = roster
        super().__init__(why)


class Registered(NamedTuple):
    """How a node was welcomed."""

    head: Peer
    welcome: Welcome
    #: The bytes that follow the welcome.
    content: memoryview
    #: What has arrived after it already.
    rest: list[Event]
    #: Every tensor of the head's model before the first update, if this node's starts from others.
    initial: dict[str, Tensor] | None


def register(hub: Hub, roster: Roster, terms: Terms, process: int, deadline: float) -> Registered:
    """Introduce this node to the head, and wait for its welcome.

    Of a node that comes back, each of the others says who leads by now.

    Raises:
        RunOver: the run cannot begin.
        RunFailed: the head cannot be reached.
        Dismissed: another node has this rank by now; there is another one.
    """
    end, initial = time.monotonic() + deadline, None
    #: Who is dialled, or connected.
    places: dict[Address, Peer | None] = dict.fromkeys((roster.head, *roster.others))

    def introduce(peer: Peer) -> None:
        send(hub, peer, Register(terms, boot(), process, hub.address if roster.moves else None, roster.offer))

    while True:
        termination.check()
        if roster.others and time.monotonic() >= end:
            raise PeerLost(f"rank {roster.rank}", f"found no node that leads the run within {deadline:g} s")
        events = deque(hub.poll(LOOK))
        while events:
            match events.popleft():
                case Arrived(peer, dialled):
                    if dialled is not None:
                        places[dialled] = peer
                        introduce(peer)
                case Unreached(address, why):
                    places.pop(address, None)
                    if not places:
                        raise PeerLost(f"rank {roster.rank}", _unreached(roster, address, why))
                case Gone(peer):  # a head that ends now belongs to the run before; this run's is about to come
                    for address in [each for each, node in places.items() if node == peer]:
                        hub.dial(address, max(1.0, end - time.monotonic()))
                case Received(peer, kind, ints, body):
                    message, content = unpack(kind, ints, body)
                    if isinstance(message, Clock):
                        send(hub, peer, Clock(message.head, now()))
                    elif isinstance(message, State):
                        initial = state_of(message, content).tensors
                    elif isinstance(message, Refused):
                        raise _refused(roster, message, peer, places)
                    elif isinstance(message, Standing):  # of another node, which says who leads
                        head = message.facts(message.roll.term % roster.nodes)
                        if head is not None and head.rank == peer.number:
                            introduce(peer)  # it leads since it was asked
                        elif head is not None and head.address not in places:
                            places[head.address] = None
                            hub.dial(head.address, max(1.0, end - time.monotonic()))
                    elif isinstance(message, Welcome):
                        for address, other in places.items():
                            if other != peer:
                                hub.leave(other or hub.me.peer, address)
                        return Registered(peer, message, content, list(events), initial)


def _refused(
    roster: Roster, message: Refused, head: Peer, places: Mapping[Address, Peer | None]
) -> RunOver | Dismissed:
    """Return why the head does not let this node in, and the rank that it may take instead."""
    if message.rank < 0:
        return RunOver(message.why, message.exit_code)
    (address,) = (each for each, there in places.items() if there == head)
    others = tuple(each for each in (roster.head, *roster.others) if each != address)
    why = f"rank {roster.rank} is another machine's by now, and this one comes as rank {message.rank}"
    place = replace(roster, rank=message.rank, offer=message.offer, head_rank=head.number, head=address)
    return Dismissed(why, replace(place, others=others, store=None))


def _unreached(roster: Roster, address: Address, why: str) -> str:
    head = roster.head_name
    advice = "" if roster.apart or roster.open else ", and whether PACELINE_HEAD is alike for all ranks"
    return f"cannot reach {head} at {address}: {why}. Look at what {head} printed{advice}"
