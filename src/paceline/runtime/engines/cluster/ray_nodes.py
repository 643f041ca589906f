"""The roster `ray`: Ray places, starts and replaces the nodes' agents, which are actors. It carries nothing else.

driver (head)                 Ray                       actor: agent of rank r
-------------                 ---                       ----------------------
places one actor per node --> starts them, spread ----> says which machine it is on
gives out the ranks, so that
neighbours are on different
machines; the job ----------> hands it over ----------> dials the head, and goes on as a launcher's node
notices that a rank is gone,
asks for another actor -----> starts it on a machine
                              that answers -----------> dials the head with the same rank: a late joiner
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

from paceline.algorithms.cluster.vacancies import NO_VACANCY, Vacancy
from paceline.errors import DeathWarning, JobWarning, RunFailed
from paceline.plans.plan import Plan
from paceline.runtime.engines.cluster import engine
from paceline.runtime.engines.cluster.ray_agent import AgentEnd, How
from paceline.runtime.engines.cluster.ray_session import PATIENCE, RaySession, package, session
from paceline.runtime.engines.cluster.roster import NodeOptions, Roster
from paceline.runtime.engines.cluster.run_spec import RunSpec, make_run_keys, with_keys
from paceline.runtime.engines.outcome import Life, Outcome
from paceline.runtime.engines.ray_actor import Machine, RayAgent
from paceline.runtime.engines.setup import Setup
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, TrustedNetwork
from paceline.runtime.links.tcp.handshake import RUN_BYTES

ANSWER = 0.3  # seconds in which a machine that is well accepts a connection
LOOK = 0.5  # seconds between two looks at the actors
#: Seconds without the head of Ray after which a run ends. Ray would end its processes after 60.
HEAD_PATIENCE = 20.0
OWN_PATIENCE = 3.0  # the same of a cluster of the run's own, whose head no one starts again
ATTEMPTS = 16  # agents that a rank may have, one after another
HEAD_LOST = (
    "the head of Ray at {} cannot be reached for {:g} s: its process or its machine has ended, or the network is down. "
    "Every process of the run ends; start Ray again, then the run"
)
RAYLET_LOST = (
    "the raylet of this machine, Ray's process, has ended; the system may have killed it for want of memory. Every "
    "process of the run ends; start Ray again, then the run"
)


@contextlib.contextmanager
def train(life: Life, options: NodeOptions) -> Iterator[Outcome]:
    """Run a plan on nodes that Ray places. This process is the head, and has no worker."""
    setup, workers = life.setup, life.setup.plan.workers
    head, meeting = Address("127.0.0.1", 0), secrets.token_bytes(RUN_BYTES)
    roster = Roster(workers, workers, head, 0, "ray", meeting, LOOPBACK, head_rank=workers)
    spec = RunSpec(setup.users_job, setup.plan, setup.limit, roster, life.deadline, {})
    with session(options.address, workers * _cpus(setup.plan), len(spec.pack())) as where:
        credentials = TrustedNetwork(secrets.token_bytes(32)) if options.trusted_network and not where.own else LOOPBACK
        keys = {} if where.own or options.trusted_network else make_run_keys()
        roster = replace(roster, head=Address(where.host, 0), credentials=credentials)
        nodes = RayNodes(where, replace(spec, roster=roster, keys=keys), _gpus(setup))
        try:
            with with_keys(roster, keys) as placed, engine.train(life, placed, options.backups, nodes) as outcome:
                yield outcome
        finally:
            nodes.close()


def _gpus(setup: Setup) -> int:
    """Return how many GPUs each agent needs."""
    import torch

    device = setup.job.device
    return int(device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()))


@dataclass
class _RankAgent:
    """Who is the agent of a rank."""

    actor: RayActor
    #: How many agents the rank has had.
    attempt: int = 1
    #: Whether the agent has come to the head.
    joined: bool = False


class RayNodes:
    """`node.Nodes` that are actors."""

    def __init__(self, where: RaySession, spec: RunSpec, gpus: int) -> None:
        self._ray: Any = package()
        self._where, self._spec, self._gpus = where, spec, gpus
        #: Under synchronous plans the survivors continue, and no node joins them.
        self.replaces = spec.plan.method.server is not None
        self._actors = RayActors(_cpus(spec.plan), gpus)
        #: Actors that have no rank yet.
        self._unplaced: list[RayActor] = []
        self._agents: dict[int, _RankAgent] = {}
        #: What each agent will return, with its rank.
        self._ends: dict[Any, tuple[int, RayActor]] = {}
        #: Machines of agents that were lost.
        self._suspects: set[Machine] = set()
        self._begun = False
        self._since = self._checked_at = time.monotonic()

    def start(self, head: Address) -> None:
        self._since = time.monotonic()
        self._spec = replace(self._spec, roster=replace(self._spec.roster, head=head))
        self._warn_if_scarce()
        self._unplaced = [self._actors.start() for _ in range(self._spec.plan.workers)]

    def started(self) -> None:
        self._begun = True
        for agent in self._agents.values():
            agent.joined = True

    def joined(self, rank: int) -> None:
        self._agents[rank].joined = True

    def offer(self) -> Vacancy:
        return NO_VACANCY  # Ray gives each node its rank

    def admits(self, vacancy: Vacancy) -> bool:
        return True

    def lost(self, rank: int) -> None:
        self._require_ray()
        if self.replaces and self._agents[rank].joined:
            self._replace(rank, "its node cannot be reached")

    def poll(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < LOOK:
            return
        self._checked_at = now
        self._require_ray()
        if self._unplaced:
            self._place(now)
        else:
            self._check_ends()

    def close(self) -> None:
        """End the actors. If Ray is gone, their agents have ended with the run."""
        if self._where.watch.lost_since is None and not has_ended(self._where.machine):
            self._actors.end().join(PATIENCE)

    def _require_ray(self) -> None:
        """Raise RunFailed if the head of Ray cannot be reached, or the raylet of this machine has ended."""
        lost, patience = self._where.watch.lost_since, OWN_PATIENCE if self._where.own else HEAD_PATIENCE
        if lost is not None and time.monotonic() - lost > patience:
            raise RunFailed(HEAD_LOST.format(self._where.head, patience))
        if has_ended(self._where.machine):
            raise RunFailed(RAYLET_LOST)

    # --- placing ---

    def _warn_if_scarce(self) -> None:
        plan = self._spec.plan
        needed, cpus = plan.workers * _cpus(plan), self._ray.cluster_resources().get("CPU", 0)
        if needed > cpus:
            warnings.warn(
                f"the Ray cluster has {cpus:g} CPUs, and {plan.workers} workers need {needed}: the run begins if more "
                f"nodes come within {self._spec.deadline:g} s (timeout=..., --timeout)",
                JobWarning,
                stacklevel=2,
            )

    def _place(self, now: float) -> None:
        """Give out the ranks once every actor runs."""
        machines = [actor.where for actor in self._unplaced]
        ready, waiting = self._ray.wait(machines, num_returns=len(machines), timeout=0)
        if waiting:
            if now - self._since > self._spec.deadline:
                raise RunFailed(self._not_placed(len(ready)))
            return
        try:
            names = [machine.name for machine in self._ray.get(machines)]
        except self._ray.exceptions.RayError as error:
            raise RunFailed(f"an agent could not start on a node of Ray: {_first(error)}") from error
        actors, self._unplaced = self._unplaced, []
        job = self._ray.put(self._spec.pack())
        for rank, index in enumerate(alternating(names)):
            self._ask(rank, _RankAgent(actors[index]), job)

    def _not_placed(self, placed: int) -> str:
        plan = self._spec.plan
        everything, free = self._ray.cluster_resources(), self._ray.available_resources()
        gpus = f", of {everything.get('GPU', 0):g} GPUs {free.get('GPU', 0):g}" if self._gpus else ""
        return (
            f"Ray has placed {placed} of {plan.workers} workers within {self._spec.deadline:g} s: of the cluster's "
            f"{everything.get('CPU', 0):g} CPUs {free.get('CPU', 0):g} are free{gpus}. Each worker needs "
            f"{_cpus(plan)} CPU{'s' * (_cpus(plan) > 1)}: give fewer workers, or add nodes to the cluster"
        )

    def _ask(self, rank: int, agent: _RankAgent, job: Any) -> None:
        """Ask the agent of a rank to dial the head, and to train what this object of Ray says."""
        self._agents[rank] = agent
        roster = replace(self._spec.roster, rank=rank, attempt=agent.attempt)
        self._ends[agent.actor.handle.run.remote(job, roster)] = rank, agent.actor

    # --- what ends ---

    def _replace(self, rank: int, why: str) -> None:
        """Let another actor take the place of one that is lost, on a machine that answers."""
        before = self._agents[rank]
        if before.attempt >= ATTEMPTS:
            warnings.warn(f"rank {rank} does not come back: {why}", DeathWarning, stacklevel=2)
            return
        self._actors.end([before.actor])
        if before.actor.machine is not None:
            self._suspects.add(before.actor.machine)
        self._suspects = {machine for machine in self._suspects if not answers(machine)}
        # An object that no other machine has: Ray may ask one that has ended for it, twice, for 10 and 20 seconds.
        job = self._ray.put(self._spec.pack())
        self._ask(rank, _RankAgent(self._actors.start(avoid=self._suspects), before.attempt + 1), job)

    def _check_ends(self) -> None:
        for ref in self._ray.wait(list(self._ends), num_returns=len(self._ends), timeout=0)[0] if self._ends else ():
            rank, actor = self._ends.pop(ref)
            if actor is not self._agents[rank].actor:
                continue  # another one has taken its place
            try:
                end: AgentEnd = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                end = AgentEnd(How.KILLED, _first(error))
            if not self._begun and end.why and not (self.replaces and end.how is How.KILLED):
                raise RunFailed(f"rank {rank} could not begin: {end.why}")
            if not self.replaces or end.how is How.DONE:
                continue
            if end.how is How.UNFIT:
                warnings.warn(f"rank {rank} does not come back: {end.why}", DeathWarning, stacklevel=2)
            else:
                self._replace(rank, end.why)


def alternating(machines: Sequence[str]) -> list[int]:
    """Order indices so that neighbours lie on different machines where that is possible."""
    on: dict[str, list[int]] = defaultdict(list)
    for index, machine in enumerate(machines):
        on[machine].append(index)
    rounds = zip_longest(*sorted(on.values(), key=len, reverse=True))
    return [index for index in chain.from_iterable(rounds) if index is not None]


def _first(error: BaseException) -> str:
    """Return the first line of what Ray says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _cpus(plan: Plan) -> int:
    """Return the CPUs of an agent: for its worker, and helpers that compute chunks beside it."""
    return plan.threads * plan.chunks


# --- The actors in which agents run: they are started on machines that answer, and ended -----------------------------


@dataclass(frozen=True, eq=False)
class RayActor:
    """An actor that was started, here or not yet."""

    handle: Any
    #: What it will say of its machine.
    where: Any

    @property
    def machine(self) -> Machine | None:
        """Its machine, if it has said it."""
        ray = package()
        try:
            ready, _ = ray.wait([self.where], timeout=0)
            return ray.get(self.where) if ready else None
        except ray.exceptions.RayError:
            return None  # it has ended before


class RayActors:
    """Starts and ends actors, each with so many CPUs and GPUs."""

    def __init__(self, cpus: int, gpus: int) -> None:
        self._needs = {"num_cpus": cpus, "num_gpus": gpus}
        self._all: list[Any] = []

    def start(self, avoid: Collection[Machine] = ()) -> RayActor:
        """Start an actor on none of these machines.

        Ray places actors on a machine that has ended until it notices, after some 15 seconds, and they wait there.
        """
        names = ", ".join(machine.name for machine in avoid)
        labels = {"label_selector": {"ray.io/node-id": f"!in({names})"}} if avoid else {}
        options = {**self._needs, **labels, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        handle = package().remote(RayAgent).options(**options).remote()
        self._all.append(handle)
        return RayActor(handle, handle.machine.remote())

    def end(self, actors: Sequence[RayActor] | None = None) -> threading.Thread:
        """End these actors, or all of them, in a thread, since Ray may wait for a machine that has ended."""
        handles = [each.handle for each in actors] if actors is not None else list(self._all)
        thread = threading.Thread(target=_kill, args=(handles,), name="paceline-ray-kill", daemon=True)
        thread.start()
        return thread


def _kill(handles: Sequence[Any]) -> None:
    for handle in handles:
        with contextlib.suppress(Exception):
            package().kill(handle, no_restart=True)


def has_ended(machine: Machine) -> bool:
    """Whether nothing listens any longer where the raylet of a machine did."""
    try:
        socket.create_connection((machine.host, machine.port), ANSWER).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # it may only be slow
    return False


def answers(machine: Machine) -> bool:
    """Whether the raylet of a machine accepts a connection."""
    try:
        socket.create_connection((machine.host, machine.port), ANSWER).close()
    except OSError:
        return False
    return True
