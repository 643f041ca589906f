"""A node that is not the head: its agent follows the head until the run is over."""

from __future__ import annotations

import math
import os
import signal
import time
from functools import partial

from paceline.algorithms.cluster.group import Release
from paceline.errors import RunFailed, RunOver
from paceline.runtime.engines.checkpoints import resume_line
from paceline.runtime.engines.cluster import rendezvous
from paceline.runtime.engines.cluster.agent import Agent
from paceline.runtime.engines.cluster.children import Children
from paceline.runtime.engines.cluster.control import Asked, Over, Result, Welcome, state_of, unpack
from paceline.runtime.engines.cluster.node import POLL, NodePart, resume_point, split
from paceline.runtime.engines.outcome import Outcome
from paceline.runtime.engines.signals import Noted, handling
from paceline.runtime.engines.snapshots import open_snapshots
from paceline.runtime.links.tcp.events import Event, Gone, Received
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.runs.trace import Trace


def follow(part: NodePart) -> Outcome:
    """Train this node's part of the run, and return the trained model as the head sends it.

    Raises:
        RunOver: the run has failed or was stopped.
        RunFailed: the head cannot be reached any longer, or the run has gone on without this node.
    """
    hub = part.hub
    head, welcome, content, rest, initial = rendezvous.register(
        hub, part.roster, part.terms, os.getpid(), part.deadline
    )
    part = part if initial is None else part.starting_from(initial)
    setup = part.setup
    state = state_of(welcome.state, content) if welcome.state is not None else None
    snapshots = open_snapshots(setup, None, welcome.snapshots_every)
    agent = Agent(
        setup,
        part.rank_config(bytes.fromhex(welcome.run), rendezvous.own_host(part.roster.head)),
        Children(hub.wake),
        partial(rendezvous.send, hub, head),
        snapshots,
        leads=False,
        resume=resume_point(welcome.updates, welcome.checkpoint_every, bool(welcome.folder), state),
    )
    start, interrupt = time.perf_counter_ns(), Noted()
    handled = () if part.roster.apart else (signal.SIGINT, signal.SIGTERM)  # Ray ends its actors itself
    with handling(handled, interrupt):  # torchrun sends them when the head dies, and this node has to say how to resume
        try:
            agent.start()
            content = _follow(part, welcome, head, agent, interrupt, rest)
        except RunFailed as error:
            if not interrupt.number:
                raise
            raise RunOver(str(error), 128 + interrupt.number) from error  # whatever made it end, once it was asked to
        finally:
            agent.close()
            if snapshots is not None:
                snapshots.close()
    return Outcome(Trace.of([]), (time.perf_counter_ns() - start) / 1e9, split(setup, content))


def _follow(
    part: NodePart, welcome: Welcome, head: Peer, agent: Agent, interrupt: Noted, events: list[Event]
) -> memoryview:
    """Pass messages between the head and the worker until the result arrives."""
    notified, looked, silence = False, time.monotonic(), part.timing.silence
    woke = -math.inf  # when this process could go on, after it had been stopped for too long
    while True:
        slept, looked = time.monotonic() - looked, time.monotonic()
        woke = looked if slept > silence else woke
        for event in events:
            content = _take(part, welcome, agent, event, looked - woke < silence, interrupt)
            if content is not None:
                return content
        agent.poll()
        if interrupt.number and not notified:
            notified = True
            # A machine that has joined by a code leaves; it ends nobody's run.
            number = signal.SIGTERM if part.roster.open else interrupt.number
            rendezvous.send(part.hub, head, Asked(number))
        events = part.hub.poll(POLL)


def _take(
    part: NodePart, welcome: Welcome, agent: Agent, event: Event, slept: bool, interrupt: Noted
) -> memoryview | None:
    """Take an event of the connection to the head; return the result if that has come."""
    if isinstance(event, Gone):
        raise RunFailed(_dismissed(part, "") if slept else _head_lost(part, event.why, welcome.folder))
    if not isinstance(event, Received):
        return None
    message, content = unpack(event.kind, event.ints, event.body)
    if isinstance(message, Result):
        return content
    if isinstance(message, Over):
        raise RunOver(message.why, message.exit_code)
    agent.handle_message(message, content)
    if isinstance(message, Release):
        how = f"was asked to end ({signal.Signals(interrupt.number).name})" if interrupt.number else agent.ending
        raise RunFailed(_dismissed(part, how))
    return None


def _head_lost(part: NodePart, why: str, folder: str) -> str:
    command = resume_line(folder) if folder else ""
    roster = part.roster
    return f"rank {roster.rank} has ended, since it lost the head: {roster.head_name} {why}{command}"


def _dismissed(part: NodePart, ending: str) -> str:
    if ending:
        return f"the worker of rank {part.roster.rank} {ending}; the run goes on without this rank"
    return (
        f"the run has gone on without rank {part.roster.rank}, which did not answer for too long: its process, its "
        "machine or its network was stopped. The other ranks compute its part of each batch"
    )
