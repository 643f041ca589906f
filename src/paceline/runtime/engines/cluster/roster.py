"""The roster of a run: which of its nodes this process is, how many there are, and where the head is.

The roster `environment` is what a launcher says in the environment of the processes that it started (torchrun, srun,
mpiexec, a StatefulSet of Kubernetes, or PACELINE_RANK and PACELINE_NODES). Their number is fixed. The roster `ray` is
made by a driver, which is the head and has no worker of its own; Ray replaces nodes (ray_nodes.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from paceline.algorithms.cluster.launchers import JOB_NAMES, from_environment
from paceline.errors import PlanError, RunFailed, UsageError, whole
from paceline.errors.arguments import check_arguments
from paceline.plans.plan import Plan, check_method
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import Credentials, credentials_of
from paceline.runtime.links.tcp.handshake import RUN_BYTES


@dataclass(frozen=True)
class NodeOptions:
    """How the machines of a run come together, for `train(nodes=)`.

    Args:
        keys: The folder of keys with which the nodes of a cluster authenticate each other (`paceline keys`).
        trusted_network: Authenticate the nodes of a cluster by `PACELINE_TOKEN`, without encryption.
        backups: Servers on other nodes that hold a copy of each shard, on a cluster and under plans with servers.
        address: The Ray cluster, `HOST:PORT` or `"auto"`. Default: one is started on this machine for the run. With
            `joinable`: this machine's own address.
        joinable: Whether other machines may join by the code that is printed (`paceline join`).
    """

    keys: str | Path | None = None
    trusted_network: bool = False
    backups: int = 1
    address: str | None = None
    joinable: bool = False

    def __post_init__(self) -> None:
        check_arguments(type(self), vars(self))
        whole("backups", self.backups, 0)


#: Variables that launchers set alike for all processes of a run, and differently for another one.
RUN_NAMES = ("PACELINE_RUN", "TORCHELASTIC_RUN_ID", *JOB_NAMES["srun"], *JOB_NAMES["mpiexec"])


@dataclass(frozen=True)
class Roster:
    """One node's place in a run."""

    rank: int
    #: The nodes that have a worker; their ranks count from 0.
    nodes: int
    #: Where the head listens; at port 0 it takes any.
    head: Address
    #: The rank among the nodes of this machine.
    local_rank: int
    #: What started the nodes, for messages.
    launcher: str
    #: Known to every node before they have met: no node of another run joins this one by mistake.
    meeting: bytes
    #: How peers are authenticated.
    credentials: Credentials
    #: The head's rank: 0, or `nodes` if the head has no worker.
    head_rank: int = 0
    #: Where the head says which port it has taken; None where every rank knows it.
    store: AgentStore | None = None
    #: Which agent of its rank this is, counted from 1 by a driver; 0 where a launcher starts them.
    attempt: int = 0
    #: Whether machines join by a code, and may leave.
    open: bool = False
    #: The nodes with which the run begins, where others come later; 0: all.
    begins_with: int = 0
    #: The number of the offer by which a machine that joins has its rank; 0: none.
    offer: int = 0
    #: Where other nodes listen, of a node that comes back: any of them says who leads by now.
    others: tuple[Address, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether this node is the head."""
        return self.rank == self.head_rank

    def listening(self, port: int) -> Roster:
        """Return the roster of a head that listens at a port, of which the other nodes learn."""
        if self.store is not None:
            self.store.publish(port)
        return replace(self, head=Address(self.head.host, port))

    def located(self, deadline: float) -> Roster:
        """Return the roster of another node, with the port at which the head listens.

        Raises:
            RunFailed: the head has not said it before the deadline.
        """
        if self.store is None:
            return self
        return replace(self, head=Address(self.head.host, self.store.port(self.rank, deadline)))

    @property
    def apart(self) -> bool:
        """Whether the head has no worker."""
        return self.head_rank == self.nodes

    @property
    def moves(self) -> bool:
        """Whether another node leads if the head is lost: not in place of a driver."""
        return not self.apart

    @property
    def followers(self) -> list[int]:
        """The ranks of all nodes but the head."""
        return [rank for rank in range(self.nodes) if rank != self.head_rank]

    @property
    def awaited(self) -> set[int]:
        """Those of them without which the run does not begin."""
        return {rank for rank in self.followers if rank < (self.begins_with or self.nodes)}

    @property
    def head_name(self) -> str:
        """What messages call the head."""
        return "the driver" if self.apart else f"rank {self.head_rank}"


def nodes(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many nodes a launcher has started; 0 if no launcher started this process."""
    launched = from_environment(environ)
    return launched.nodes if launched else 0


def refuse_torchrun(environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError if torchrun has started several processes, each of which would start a run of its own on Ray.

    A step of srun is right: `ray symmetric-run` starts the driver in one.
    """
    launched = from_environment(environ)
    if launched is not None and launched.launcher == "torchrun" and launched.nodes > 1:
        raise UsageError(
            f"torchrun has started {launched.nodes} processes, and with engine='ray' each would start a run of its "
            "own: give the command once, without torchrun, or leave engine='ray' (--engine) out"
        )


def roster(
    environ: Mapping[str, str] = os.environ, keys: str | Path | None = None, trusted_network: bool = False
) -> Roster:
    """Return this node's place.

    Args:
        environ: what the launcher has set; PACELINE_KEYS and PACELINE_TOKEN, too.
        keys: a folder that `paceline keys` has made, for connections between machines.
        trusted_network: whether a token is enough, and nothing has to be encrypted.

    Raises:
        UsageError: no launcher says how many nodes there are, or where rank 0 is; or the token is missing.
    """
    environ = _with_mpich_job(environ)
    launched = from_environment(environ)
    if launched is None:
        raise UsageError(
            "engine='cluster' needs a launcher that says which node this process is: start it by torchrun, srun or "
            "mpiexec, or set PACELINE_RANK, PACELINE_NODES and PACELINE_HEAD=host:port for every process"
        )
    named = [f"{launched.launcher} {launched.nodes}", *(environ.get(name, "") for name in RUN_NAMES)]
    meeting = sha256("\n".join(named).encode()).digest()[:RUN_BYTES]
    store = AgentStore.of(Address(*launched.store), meeting, environ) if launched.store else None
    return Roster(
        launched.rank,
        launched.nodes,
        Address(*launched.head),
        launched.local_rank,
        launched.launcher,
        meeting,
        credentials(environ, keys, trusted_network),
        store=store,
    )


def _with_mpich_job(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Name the job of MPICH's mpiexec, which names none, by the process that serves all its ranks on this machine."""
    local_size, world_size = environ.get("MPI_LOCALNRANKS"), environ.get("PMI_SIZE")
    if environ.get("PMI_JOBID") or local_size is None or local_size != world_size:
        return environ
    with contextlib.suppress(OSError, ValueError, KeyError):
        with socket.socket(fileno=os.dup(int(environ["PMI_FD"]))) as end:
            process, _, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return {**environ, "PMI_JOBID": f"process {process}"}
    return environ


def credentials(environ: Mapping[str, str], keys: str | Path | None, trusted_network: bool) -> Credentials:
    """Return what admits only nodes of the run: this machine's loopback, keys, or a token on a trusted network."""
    folder = keys or environ.get("PACELINE_KEYS")
    if not trusted_network:
        return credentials_of(Path(folder) if folder else None, None)
    token = environ.get("PACELINE_TOKEN", "")
    if not token:
        raise UsageError(
            "--trusted-network needs a token that all ranks know: set PACELINE_TOKEN, alike for all, to what "
            "`python -c 'import secrets; print(secrets.token_hex(16))'` prints"
        )
    return credentials_of(Path(keys) if keys else None, token)


# --- The store of torchrun's agent, in which rank 0 says at which port it listens: it takes any that is free ----------
# rank 0                              torchrun's agent, at MASTER_ADDR:MASTER_PORT     every other rank
# ------                              --------------------------------------------     ----------------
# listens; says its port -----------> keeps it --------------------------------------> asks until it is there
#
# Nothing secret is in it, and what is read there is not trusted: the process that listens at that port
# has to pass the handshake.

LOOK = 0.05  # seconds between two looks
CONNECTING = 10.0  # seconds until the store has answered
#: Numbers the times that the ranks of this process have met: all ranks meet equally often, as in collectives.
_MEETINGS = itertools.count()


@dataclass(frozen=True)
class AgentStore:
    """Where rank 0 says its port."""

    address: Address
    #: Distinguishes this run's ports from those of others that use the store.
    name: str

    @classmethod
    def of(cls, address: Address, meeting: bytes, environ: Mapping[str, str] = os.environ) -> AgentStore:
        """Return the store of a run; ranks that torchrun has started again begin anew."""
        return cls(address, f"paceline/{meeting.hex()}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}")

    def publish(self, port: int) -> None:
        """Say that rank 0 listens at a port.

        Raises:
            RunFailed: the store cannot be reached.
        """
        key, store = self._next(), self._connected(CONNECTING)
        try:
            store.set(key, str(port))
        except RuntimeError as error:
            raise RunFailed(self._lost(error)) from error

    def port(self, rank: int, deadline: float) -> int:
        """Return the port at which rank 0 listens, as soon as it has said it.

        Raises:
            RunFailed: it has not before the deadline, or the store cannot be reached.
        """
        key, end = self._next(), time.monotonic() + deadline
        store = self._connected(min(deadline, CONNECTING))
        try:
            while not store.check([key]):
                if time.monotonic() >= end:
                    raise RunFailed(
                        f"rank {rank} waited {deadline:g} s for rank 0 to say where it listens, in the store of "
                        f"torchrun at {self.address}: look at what rank 0 printed, or give a longer timeout "
                        "(timeout=..., --timeout)"
                    )
                time.sleep(LOOK)
            return int(store.get(key))
        except RuntimeError as error:
            raise RunFailed(self._lost(error)) from error

    def _next(self) -> str:
        return f"{self.name}/{next(_MEETINGS)}"

    def _connected(self, seconds: float) -> Any:
        from torch._C._distributed_c10d import TCPStore

        try:
            return TCPStore(*self.address, is_master=False, timeout=timedelta(seconds=seconds), wait_for_workers=False)
        except RuntimeError as error:
            raise RunFailed(self._lost(error)) from error

    def _lost(self, error: BaseException) -> str:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return (
            f"the store of torchrun at {self.address}, where rank 0 says its port, cannot be reached: {first}. Look at "
            "what torchrun printed on the machine of rank 0, or set PACELINE_HEAD=host:port, alike for all ranks"
        )


# --- Whether the nodes that a launcher has started fit a plan ---------------------------------------------------------


def check(plan: Plan, roster: Roster, resumed: bool = False) -> None:
    """Raise PlanError if a cluster cannot run the plan, or not with so many nodes.

    A run can be resumed by fewer nodes where all workers hold the same: they compute the chunks of those that are gone.
    """
    check_method(plan)
    fewer = resumed and plan.traits.agrees and roster.nodes < plan.workers
    if plan.workers != roster.nodes and not fewer:
        raise PlanError(
            f"plan {plan} has {plan.workers} workers, and {roster.launcher} has started {roster.nodes} nodes, which "
            "have a worker each: leave the number of workers out, or start as many nodes"
        )
