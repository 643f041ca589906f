"""The processes that an agent starts for plans with servers: the desk, a shard server, a worker."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection as Pipe
from time import monotonic
from time import perf_counter_ns as now

import torch

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.cluster.desk import DeskMachine
from paceline.algorithms.cluster.leases import DeskDuties
from paceline.algorithms.cluster.messages import Process, Role
from paceline.algorithms.cluster.outputs import TIMING, Timing
from paceline.algorithms.cluster.shard import ShardMachine
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.errors.failure import Position
from paceline.plans.plan import server_of
from paceline.runtime.engines.cluster.control import ShardStart
from paceline.runtime.engines.cluster.group_client import RankConfig
from paceline.runtime.engines.cluster.servers.centre import CentreState
from paceline.runtime.engines.cluster.servers.client import ServerClient
from paceline.runtime.engines.cluster.servers.desk_process import DeskProcess
from paceline.runtime.engines.cluster.servers.loop import peer_of
from paceline.runtime.engines.cluster.servers.shard_process import ShardProcess, State
from paceline.runtime.engines.cluster.servers.shard_state import Pushes, ShardState
from paceline.runtime.engines.cluster.servers.team import TeamLeader, TeamMemory
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.collectives import Means, Sums
from paceline.runtime.engines.workers.messages import Assignment, Failed, FailureReport, StateLeft, worker_process
from paceline.runtime.engines.workers.methods.runner import ReadAhead
from paceline.runtime.engines.workers.process import become_worker, trim_heap
from paceline.runtime.engines.workers.state_buffers import StateBuffer
from paceline.runtime.engines.workers.worker import ProcessHost, ReplicaWorker
from paceline.runtime.engines.workers.worker_context import Station
from paceline.runtime.links.memory import SharedTensors
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import Credentials, listen
from paceline.runtime.links.tcp.handshake import Identity
from paceline.runtime.links.tcp.hub import Hub, PeerPlace
from paceline.runtime.links.tcp.waiting import Pump
from paceline.runtime.links.waiting import Waiter
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.parameters.layout import Layout


class NoGroup:
    """`Group` of a worker that keeps step with no other: under a plan with servers nothing asks it."""

    leads = True
    parts = None
    paces = 0

    def chunks(self, update: int) -> list[Chunk]:
        raise NotImplementedError

    def coming(self, update: int) -> list[Chunk]:
        raise NotImplementedError

    def sums(self, collective: Collective, encoder: GradientEncoder | None = None) -> Sums:
        raise NotImplementedError

    def mixing(self, graph: Neighbours) -> Means:
        raise NotImplementedError


@dataclass(frozen=True)
class ServerConfig:
    """What every process of a plan with servers needs to reach the others."""

    run: bytes
    job: bytes
    #: Where this node is reached by the others.
    host: str
    credentials: Credentials
    desk: Address
    timing: Timing = TIMING

    @staticmethod
    def of(rank: RankConfig, desk: Address) -> ServerConfig:
        """Return the configuration of a rank's server processes, given where the desk listens."""
        return ServerConfig(rank.run, rank.job, rank.host, rank.credentials, desk)

    def hub(self, process: Process, place: PeerPlace | None = None, listener: socket.socket | None = None) -> Hub:
        me = Identity(peer_of(process), self.run, self.job)
        return Hub(me, self.credentials, listener, place=place, pump=Pump(self.timing.heartbeat))


def run_desk(
    config: ServerConfig,
    box: list[bytes],
    listener: socket.socket,
    epoch: int,
    copies: int,
    members: Sequence[tuple[int, ...]],
    expected: frozenset[int],
    block: int,
    pipe: Pipe,
) -> None:
    """Run the desk of an epoch at a socket that listens already, until the agent ends this process."""
    become_worker(memory_bounded=False)
    assignment: Assignment = pickle.loads(box.pop())
    workers = assignment.plan.workers
    duties = DeskDuties(
        workers, assignment.agenda.leases, server_of(assignment.plan).gate, copies, block, nodes=workers
    )
    machine = DeskMachine(epoch, duties, config.timing, members, monotonic(), expected)
    first = [number for each in members for number in each]
    DeskProcess(machine, config.hub(Process(Role.DESK, 0), listener=listener), first, assignment.deadline).run()


def run_server(
    config: ServerConfig,
    box: list[bytes],
    number: int,
    shard: int,
    layout: Layout,
    begin: list[tuple[ShardStart, bytes] | None],
    pipe: Pipe,
) -> None:
    """Run a shard server until the agent ends this process. It begins with version 0, or with what is in `begin`."""
    become_worker(memory_bounded=False)
    try:
        assignment: Assignment = pickle.loads(box.pop())
        torch.set_num_threads(1)
        _serve(config, assignment, number, shard, layout, begin.pop(), pipe)
    except BaseException as error:
        pipe.send(Failed(FailureReport.of(error, Position())))
    finally:
        pipe.close()
        os._exit(1)


def _serve(
    config: ServerConfig,
    assignment: Assignment,
    number: int,
    shard: int,
    layout: Layout,
    begin: tuple[ShardStart, bytes] | None,
    pipe: Pipe,
) -> None:
    method = server_of(assignment.plan)
    listener = listen(Address(config.host, 0), config.credentials)
    open_hub: Callable[[PeerPlace], Hub] = lambda place: config.hub(Process(Role.SERVER, number), place, listener)  # noqa: E731

    def make(which: int) -> State:
        if method.exchange is not None:
            return CentreState(assignment.job, layout, which, method.exchange, assignment.plan.workers)
        return ShardState(assignment.job, layout, which, Pushes.of(assignment.plan))

    machine = ShardMachine(number, config.timing, shard, gathers=method.gathers)
    server = ShardProcess(machine, open_hub, config.desk, config.host, make, len(layout.shards))
    if begin is not None:
        server.resume(*begin)
    server.loop.follow_desk(pipe)
    server.run()


def run_worker(
    config: ServerConfig,
    box: list[bytes],
    number: int,
    arena: Arena,
    layout: Layout,
    tensors: SharedTensors | None,
    state_buffer: StateBuffer | None,
    team: TeamMemory | None,
    pipe: Pipe,
) -> None:
    """Run one worker: prepare, train, and say how it ended. Never returns.

    `number` is another one for each process. The assignment has the rank, which outlasts it. With a team it leads it.
    """
    with worker_process(pipe, len(box[0])) as report:
        report.position = lambda: Position(arena.doing[0])
        assignment: Assignment = pickle.loads(box.pop())
        torch.set_num_threads(assignment.plan.threads)
        source = assignment.open_data(tensors)
        host, shared = ProcessHost(arena, None), arena.of_worker(0)
        waiter = Waiter(
            assignment.number, arena.doorbells[0], host.cancelled, assignment.deadline, lambda: "at a server"
        )
        notify = partial(pipe.send, StateLeft())
        resume = replace(assignment.resume_point, state_buffer=state_buffer, notify=notify)
        repeats = assignment.plan.traits.repeats
        station = Station(assignment.number, shared, waiter, host, resume)
        replica = ReplicaWorker(assignment, source, layout, station, NoGroup(), repeats)
        report.position = lambda: replica.position(arena.doing[0])
        if team is not None:
            at_team = Waiter(
                assignment.number, team.doorbells[0], host.cancelled, assignment.deadline, lambda: "in its team"
            )
            replica.sums = TeamLeader(team, replica.runner.learner, at_team).compute
        client = ServerClient(
            number,
            replica.runner,
            config.timing,
            config.desk,
            assignment.deadline,
            lambda place: config.hub(Process(Role.WORKER, number), place),
        )
        client.loop.follow_desk(pipe)
        ahead = ReadAhead(replica.reader, replica.runner, given_out=0)
        trim_heap()
        report.begin()
        replica.follow(client.walk(), ahead.computing)
        arena.ended[0] = now()
        report.finished(replica.runner.peak)
        client.loop.hub.close()
