"""A node that is not the head: its agent follows the head until the run is over, or until it leads itself."""

from __future__ import annotations

import math
import os
import signal
import time
import warnings
from collections import deque
from dataclasses import replace
from functools import partial

from paceline.algorithms.cluster.group import Release
from paceline.algorithms.cluster.succession import NO_ROLL, Accepted, Alone, Deposed, Later, Lead, Output
from paceline.errors import DeathWarning, RunFailed, RunOver
from paceline.runtime.engines.checkpoints import resume_line
from paceline.runtime.engines.cluster import rendezvous
from paceline.runtime.engines.cluster.agent import Agent
from paceline.runtime.engines.cluster.children import Children
from paceline.runtime.engines.cluster.control import (
    Asked,
    Ballot,
    CopiedRows,
    Message,
    Noted,
    Over,
    Register,
    Resend,
    Result,
    Snapshot,
    Standing,
    Welcome,
    pack,
    state_of,
    unpack,
)
from paceline.runtime.engines.cluster.node import POLL, NodePart, resume_point, split
from paceline.runtime.engines.cluster.seat import Seat
from paceline.runtime.engines.cluster.second_home import RunCopy
from paceline.runtime.engines.cluster.successor import Promoted, Successor, dismissed
from paceline.runtime.engines.outcome import Outcome, open_snapshots
from paceline.runtime.engines.signals import Noted as Interrupt
from paceline.runtime.engines.signals import handling
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.links.tcp.hub import Arrived, Event, Gone, Received, Unreached
from paceline.runtime.runs.trace import Trace


def follow(part: NodePart) -> Outcome:
    """Train this node's part of the run, and return the trained model as the head sends it.

    Raises:
        RunOver: the run has failed or was stopped.
        RunFailed: the head cannot be reached any longer, and no other leads.
        Dismissed: the run has gone on without this node.
        Promoted: this node leads from now on; its processes go on.
    """
    hub = part.hub
    head, welcome, content, rest, initial = rendezvous.register(
        hub, part.roster, part.terms, os.getpid(), part.deadline
    )
    part = part if initial is None else part.starting_from(initial)
    state = state_of(welcome.state, content) if welcome.state is not None else None
    snapshots = open_snapshots(part.setup, None, welcome.snapshots_every)
    config = part.rank_config(bytes.fromhex(welcome.run), rendezvous.own_host(part.roster.head))
    agent = Agent(
        part.setup,
        replace(config, late=welcome.late),
        Children(hub.wake),
        partial(rendezvous.send, hub, head),
        snapshots,
        leads=False,
        resume=resume_point(welcome.updates, welcome.checkpoint_every, bool(welcome.folder), state),
    )
    node = OtherNode(part, welcome, head, agent)
    start, interrupt = time.perf_counter_ns(), node.interrupt
    handled = () if part.roster.apart else (signal.SIGINT, signal.SIGTERM)  # Ray ends its actors itself
    with handling(handled, interrupt):  # torchrun sends them when the head dies, and this node has to say how to resume
        try:
            agent.start()
            values = split(part.setup, node.follow(rest))
        except Promoted:
            raise
        except BaseException as error:
            node.close()
            if isinstance(error, RunFailed) and interrupt.number:  # whatever made it end, once it was asked to
                raise RunOver(str(error), 128 + interrupt.number) from error
            raise
        node.close()
    return Outcome(Trace.of([]), (time.perf_counter_ns() - start) / 1e9, values)


class OtherNode:
    """The process of a node that follows the head."""

    def __init__(self, part: NodePart, welcome: Welcome, head: Peer, agent: Agent) -> None:
        self.part, self.welcome, self.head, self.agent, self.hub = part, welcome, head, agent, part.hub
        self.interrupt, self.copy = Interrupt(), RunCopy()
        #: Who leads; None before the head has said who belongs to the run, and under Ray.
        self.seat: Seat | None = None
        #: Whether the processes of this node have a head to say something to.
        self._connected = True
        #: What has happened and was not looked at yet.
        self._events: deque[Event] = deque()
        #: Nodes that come back and ask who leads.
        self._returning: set[Peer] = set()
        self._notified, self._turn_at = False, time.monotonic()
        #: When this process could go on, after it had been stopped for too long.
        self._woke = -math.inf

    def follow(self, events: list[Event]) -> memoryview:
        """Pass messages between the head and the worker until the result arrives."""
        while True:
            slept, self._turn_at = time.monotonic() - self._turn_at, time.monotonic()
            self._woke = self._turn_at if slept > self.part.timing.silence else self._woke
            self._events = deque(events)
            while self._events:
                content = self._take(self._events.popleft())
                if content is not None:
                    return content
            if self.seat is not None:
                self._act(self.seat.tick())
            if self._connected:
                self.agent.poll()
            if self.interrupt.number and not self._notified and self._connected:
                self._notified = True
                # A machine that has joined by a code leaves; it ends no other machine's run.
                number = signal.SIGTERM if self.part.roster.open else self.interrupt.number
                rendezvous.send(self.hub, self.head, Asked(number))
            events = self.hub.poll(POLL)

    def close(self) -> None:
        """End the node's processes, and release its files."""
        self.agent.close()
        if self.agent.snapshots is not None:
            self.agent.snapshots.close()

    def _take(self, event: Event) -> memoryview | None:
        """Take an event; return the result if that has come."""
        if isinstance(event, Received):
            return self._receive(event)
        if isinstance(event, Gone):
            self._returning.discard(event.peer)
            if event.peer == self.head:
                self._head_gone(event.why)
        if self.seat is not None:
            if isinstance(event, Gone):
                self._act(self.seat.gone(event))
            elif isinstance(event, Unreached):
                self._act(self.seat.unreached(event))
            elif isinstance(event, Arrived):
                self._act(self.seat.arrived(event))
        return None

    def _head_gone(self, why: str) -> None:
        """Take note that the head is connected no longer: another one may lead."""
        if self._turn_at - self._woke < self.part.timing.silence:
            raise dismissed(self.part, self.seat, _gone_on(self.part, ""))
        if self.seat is None and self.part.roster.others:  # it had just come back
            raise dismissed(self.part, None, _head_lost(self.part, why, self.welcome.folder))
        if self.seat is None or not self.seat.can_move:
            raise RunFailed(_head_lost(self.part, why, self.welcome.folder))
        self._connected = False

    def _receive(self, event: Received) -> memoryview | None:
        message, content = unpack(event.kind, event.ints, event.body)
        if isinstance(message, Standing | Ballot | Accepted | Later):
            self._seat(event.peer, message)
        elif isinstance(message, Register):  # of a node that comes back, and knows an earlier head
            self._returning.add(event.peer)
            self._show_head()
        elif event.peer == self.head:
            return self._execute(message, content)
        return None

    def _seat(self, peer: Peer, message: Standing | Ballot | Accepted | Later) -> None:
        """Take a message about who leads."""
        if self.seat is None:
            if not isinstance(message, Standing) or peer != self.head:
                return
            facts = message.facts(self.part.roster.rank)
            if facts is None or facts.incarnation != self.hub.me.peer.incarnation:
                return  # it tells of the node that had this rank before
            patience, start = self.part.timing.silence * rendezvous.HEAD_PATIENCE, replace(message, roll=NO_ROLL)
            early = self.part.moves_early(resumed=self.welcome.state is not None)
            self.seat = Seat(self.hub, facts.number, self.part.roster.nodes, start, patience, early)
        self._act(self.seat.take(peer, message))
        self._show_head()
        if self.seat.is_head(peer) and peer != self.head:
            self.head, self.agent.to_head = peer, partial(rendezvous.send, self.hub, peer)
            what = f"the head is lost: rank {peer.number} leads the run from now on, and has its folder"
            warnings.warn(what, DeathWarning, stacklevel=2)

    def _show_head(self) -> None:
        """Say who leads to the nodes that come back."""
        if self.seat is not None and not self.seat.machine.seeks:
            for peer in self._returning:
                self.hub.post(peer, *pack(self.seat.standing))

    def _execute(self, message: Message, content: memoryview) -> memoryview | None:
        """Take a message of the head; return the result if that is it."""
        if isinstance(message, Result):
            return content
        if isinstance(message, Over):
            raise RunOver(message.why, message.exit_code)
        if isinstance(message, CopiedRows):
            self.copy.take_rows(message, content)
        elif isinstance(message, Noted):
            self.copy.events.append(message.event)
        elif isinstance(message, Snapshot) and self.agent.snapshots is not None:
            self.agent.snapshots.put(message.updates, content)
            self.copy.snapshots.append(message.updates)
        else:
            self._connected = self._connected or isinstance(message, Resend)
            self.agent.handle_message(message, content)
        if isinstance(message, Release):
            how = self.agent.ending
            if self.interrupt.number:
                how = f"was asked to end ({signal.Signals(self.interrupt.number).name})"
            raise (
                RunFailed(_gone_on(self.part, how)) if how else dismissed(self.part, self.seat, _gone_on(self.part, ""))
            )
        return None

    def _act(self, outputs: list[Output]) -> None:
        """Do what the seat leaves to do."""
        assert self.seat is not None
        for output in outputs:
            if isinstance(output, Lead):
                if self.interrupt.number:  # it was asked to end, as torchrun asks all when one has died
                    raise RunFailed(_head_lost(self.part, "is lost", self.welcome.folder))
                self._show_head()
                events = list(self._events)
                raise Promoted(Successor(self.part, self.agent, self.seat, self.copy, self.welcome, events))
            if isinstance(output, Deposed):
                raise dismissed(self.part, self.seat, _gone_on(self.part, ""))
            if isinstance(output, Alone):
                why = _head_lost(self.part, f"is lost, and {output.why}", self.welcome.folder)
                raise dismissed(self.part, self.seat, why)


def _head_lost(part: NodePart, why: str, folder: str) -> str:
    roster = part.roster
    command = resume_line(folder) if folder and not roster.open else ""  # which is at the machine that is lost
    return f"rank {roster.rank} has ended, since it lost the head: {roster.head_name} {why}{command}"


def _gone_on(part: NodePart, ending: str) -> str:
    if ending:
        return f"the worker of rank {part.roster.rank} {ending}; the run goes on without this rank"
    return (
        f"the run has gone on without rank {part.roster.rank}, which did not answer for too long: its process, its "
        "machine or its network was stopped. The other ranks compute its part of each batch"
    )
