"""What a launcher says of a process in its environment: its rank, how many there are, and where rank 0 is.

A launcher starts the same command once per node. Each sets variables of its own:

| launcher | rank | nodes | rank on its machine | host of rank 0 |
|---|---|---|---|---|
| torchrun | RANK | WORLD_SIZE | LOCAL_RANK | MASTER_ADDR |
| srun | SLURM_PROCID | SLURM_STEP_NUM_TASKS, SLURM_NTASKS | SLURM_LOCALID | first of SLURM_STEP_NODELIST |
| mpiexec | PMI_RANK, ... | PMI_SIZE, ... | MPI_LOCALRANKID, ... | known only if all ranks are on one machine |
| kubernetes | ordinal in HOSTNAME, of a StatefulSet | PACELINE_NODES | | |

PACELINE_RANK, PACELINE_NODES and PACELINE_HEAD=host:port come before all of them. torchrun has a store that all ranks
reach (MASTER_ADDR, MASTER_PORT): there rank 0 says at which port it listens, so no port has to be guessed. Under srun
and mpiexec the port follows from the name of the job, so that two jobs may share a machine.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from paceline.errors import UsageError

#: The head's port if nothing gives another one; the first of those that follow from the name of a job.
HEAD_PORT, PORTS = 29471, 1000
#: Variables that name a job or its step, alike for all its ranks, by launcher.
JOB_NAMES = {
    "srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "mpiexec": ("PMI_JOBID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
}
#: Rank and number of ranks; rank on this machine and number of ranks there.
MPI = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"),
)
#: Set in a step of srun and not in the batch script around it, where SLURM_PROCID and SLURM_NTASKS exist too.
STEP = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Launched:
    """One of the processes that a launcher started."""

    #: "torchrun", "srun", "mpiexec", "kubernetes", or "environment" for PACELINE_RANK and PACELINE_NODES.
    launcher: str
    rank: int
    #: The processes that were started, one per node, on machines of their own or not.
    nodes: int
    #: The rank among the processes of this machine.
    local_rank: int
    #: The host of rank 0; None if the launcher does not say it.
    host: str | None
    #: Where rank 0 listens; 0 if it takes any port, and says which in the launcher's store.
    port: int
    #: Where the launcher keeps a store that all ranks reach; None if it has none, or if it is not needed.
    store: tuple[str, int] | None = None

    @property
    def head(self) -> tuple[str, int]:
        """Return the host and port of rank 0."""
        if self.host is None:
            raise UsageError(
                f"{self.launcher} does not say on which host rank 0 is: set PACELINE_HEAD=host:port for all ranks"
            )
        return self.host, self.port


class _Found(NamedTuple):
    """What the variables of one launcher say."""

    launcher: str
    rank: Number
    nodes: Number
    local_rank: int = 0
    host: str | None = None


def from_environment(environ: Mapping[str, str]) -> Launched | None:
    """Return what the launcher of this process says; None if no launcher started it."""
    own_rank, own_nodes = number(environ, "PACELINE_RANK"), number(environ, "PACELINE_NODES")
    if own_rank and own_nodes:
        launch: _Found | None = _Found("environment", own_rank, own_nodes)
    else:
        launch = (
            _torchrun(environ) or _srun(environ) or _mpiexec(environ) or _stateful_set(environ, own_rank, own_nodes)
        )
    if launch is None:
        _refuse_parts(environ)
        return None
    launch = launch._replace(rank=own_rank or launch.rank, nodes=own_nodes or launch.nodes)
    store = _store(environ) if launch.launcher == "torchrun" else None
    host, port = _head(environ, launch.launcher) if store is None else (None, 0)
    return replace(_launched(launch, host or launch.host, port), store=store)


def from_mpiexec(environ: Mapping[str, str]) -> Launched | None:
    """Return what `mpiexec` alone says; None if it did not start this process."""
    launch = _mpiexec(environ)
    return launch and _launched(launch, launch.host, HEAD_PORT)


def first_host(nodelist: str, name: str = "SLURM_NODELIST") -> str:
    """Return the first host of Slurm's short form of a list, as node003 of `node[003-007,9],login1`."""
    first = re.match(r"(?:[^][,\s]|\[[0-9]+(?:[-,][0-9]+)*\])+(?=,|$)", nodelist.strip())
    if first is None:
        raise UsageError(f"{name}={nodelist!r} is not a list of hosts, as in node[003-007,9]")
    return re.sub(r"\[([0-9]+)[^]]*\]", r"\1", first[0])


def _torchrun(environ: Mapping[str, str]) -> _Found | None:
    if not any_of(environ, "RANK", "WORLD_SIZE"):
        return None
    host = environ.get("MASTER_ADDR") or None
    return _Found("torchrun", *pair(environ, "RANK", "WORLD_SIZE"), value(environ, "LOCAL_RANK"), host)


def _srun(environ: Mapping[str, str]) -> _Found | None:
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if not any_of(environ, *STEP) or not any_of(environ, *names):
        return None
    rank, nodes = pair(environ, *names)
    inner = _mpiexec(environ)
    if inner and (inner.rank.value, inner.nodes.value) != (rank.value, nodes.value):
        return None  # mpiexec was started in a step of srun, and its ranks are those that count
    lists = (name for name in ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST") if environ.get(name))
    host = next((first_host(environ[name], name) for name in lists), None)
    return _Found("srun", rank, nodes, value(environ, "SLURM_LOCALID"), host)


def _mpiexec(environ: Mapping[str, str]) -> _Found | None:
    for rank, size, local_rank, local_size in MPI:
        # srun sets PMIX_RANK alone.
        if any_of(environ, size) or (any_of(environ, rank) and rank != "PMIX_RANK"):
            ranks, count = pair(environ, rank, size)
            local_count = number(environ, local_size)
            host = LOOPBACK if local_count and local_count.value == count.value else None
            return _Found("mpiexec", ranks, count, value(environ, local_rank), host)
    return None


def _stateful_set(environ: Mapping[str, str], rank: Number | None, nodes: Number | None) -> _Found | None:
    """Read the ordinal of a pod, such as 3 of digits-3; only PACELINE_NODES tells such a pod from any other host."""
    if nodes is None or rank is not None:
        return None
    host = environ.get("HOSTNAME", "")
    ordinal = re.fullmatch(r".*-(0|[1-9][0-9]*)", host.partition(".")[0])
    if ordinal is None:
        raise UsageError(
            f"PACELINE_NODES={nodes.value}, but nothing says which of them this process is: HOSTNAME={host!r} does not "
            "end in a number, as in digits-3; set PACELINE_RANK"
        )
    return _Found("kubernetes", Number("HOSTNAME", int(ordinal[1])), nodes)


def _launched(launch: _Found, host: str | None, port: int) -> Launched:
    """Check that the numbers fit together."""
    rank, nodes = launch.rank, launch.nodes
    if nodes.value < 1:
        raise UsageError(f"{nodes.name}={nodes.value}: at least one process must have been started")
    if rank.value >= nodes.value:
        raise UsageError(
            f"{rank.name} says rank {rank.value} and {nodes.name} says that there are {nodes.value}: ranks go from 0 "
            f"to {nodes.value - 1}; set both alike for all processes, or neither"
        )
    if nodes.value == 1 and host is None:
        host = LOOPBACK
    return Launched(launch.launcher, rank.value, nodes.value, launch.local_rank, host, port)


def _refuse_parts(environ: Mapping[str, str]) -> None:
    """Raise if Paceline's own variables were set, but not all that are needed."""
    setting = next((name for name in ("PACELINE_RANK", "PACELINE_HEAD") if environ.get(name)), None)
    if setting:
        missing = "PACELINE_NODES" if environ.get("PACELINE_RANK") else "PACELINE_RANK and PACELINE_NODES"
        raise UsageError(
            f"{setting} is set, but neither a launcher nor {missing} says how many processes there are: set {missing}, "
            f"or unset {setting}"
        )


def _head(environ: Mapping[str, str], launcher: str) -> tuple[str | None, int]:
    """Return the host that PACELINE_HEAD names, and the head's port."""
    text = environ.get("PACELINE_HEAD", "").strip()
    # host, host:port, [::1]:port
    parts = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:\[\]/]+))(?::([0-9]+))?", text)
    if text and parts is None:
        raise UsageError(f"PACELINE_HEAD={text!r} is not host:port, as in node003:29471 or [fd00::3]:29471")
    if parts and parts[3]:
        return parts[1] or parts[2], _port(int(parts[3]), f"PACELINE_HEAD={text!r}")
    master = number(environ, "MASTER_PORT")
    # MASTER_PORT itself is taken: torchrun's agent or the first rank of torch.distributed listens there.
    if master:
        port = _port(master.value + 1, f"MASTER_PORT={master.value}, plus 1,")
    else:
        port = HEAD_PORT if parts else _port_of_job(environ, launcher)
    return (parts[1] or parts[2]) if parts else None, port


def _port_of_job(environ: Mapping[str, str], launcher: str) -> int:
    named = "\n".join(environ.get(name, "") for name in JOB_NAMES.get(launcher, ())).strip()
    return HEAD_PORT + zlib.crc32(named.encode()) % PORTS if named else HEAD_PORT


def _store(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return where torchrun's agent keeps its store; None if it has none, or if PACELINE_HEAD makes it needless."""
    host, port = environ.get("MASTER_ADDR"), number(environ, "MASTER_PORT")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not host or port is None:
        return None
    return None if environ.get("PACELINE_HEAD", "").strip() else (host, _port(port.value, f"MASTER_PORT={port.value}"))


def _port(port: int, setting: str) -> int:
    if not 0 < port < 65536:
        raise UsageError(f"{setting} is not a port: give PACELINE_HEAD=host:port with one from 1 to 65535")
    return port


# --- Numbers in environment variables, and what is said where they are wrong or missing -------------------------------


class Number(NamedTuple):
    """A number with the variable that it was read from."""

    name: str
    value: int


def any_of(environ: Mapping[str, str], *names: str) -> bool:
    """Return whether one of the variables is set; an empty one is not."""
    return any(environ.get(name) for name in names)


def number(environ: Mapping[str, str], name: str) -> Number | None:
    """Return a variable's number, or None if the variable is not set."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(f"{name}={text!r} is not a whole number from 0; set it right, or unset it")
    return Number(name, int(text))


def value(environ: Mapping[str, str], name: str) -> int:
    """Return a variable's number; 0 if it is not set."""
    variable = number(environ, name)
    return variable.value if variable else 0


def pair(environ: Mapping[str, str], rank: str, *counts: str) -> tuple[Number, Number]:
    """Return the rank and the first count that is set; each needs the other."""
    first = number(environ, rank)
    count = next(filter(None, (number(environ, name) for name in counts)), None)
    if first and count:
        return first, count
    present, missing = (rank, counts[0]) if first else (count.name if count else counts[0], rank)
    raise UsageError(f"{present} is set and {missing} is not: a launcher sets both; set {missing}, or unset {present}")
