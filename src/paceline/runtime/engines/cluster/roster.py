"""The roster of a run: which of its nodes this process is, how many there are, and where the head is.

The roster `environment` is what a launcher says in the environment of the processes that it started (torchrun, srun,
mpiexec, a StatefulSet of Kubernetes, or PACELINE_RANK and PACELINE_NODES). Their number is fixed. The roster `ray` is
made by a driver, which is the head and has no worker of its own; Ray replaces nodes (ray_nodes.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from paceline.algorithms.cluster.launchers import JOB_NAMES, from_environment
from paceline.errors import UsageError
from paceline.runtime.engines.cluster.agent_store import AgentStore
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import Credentials, credentials_of
from paceline.runtime.links.tcp.handshake import RUN_BYTES

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
