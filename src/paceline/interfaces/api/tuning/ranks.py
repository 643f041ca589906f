"""Where the ranks of a tuning meet: rank 0 decides and writes the journal, the others run trials.

launcher                       rank 0
-----------------------------  ------------------------------------------------------------------------
torchrun, srun, mpiexec, ...   the launcher's; its address is known to all
an array of Slurm              the first task that locks a file in the tuning's folder; when it ends, the next one
Ray                            the driver; tasks of Ray dial it
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from paceline.algorithms.cluster.launchers import value
from paceline.errors import RunFailed, TuningError, UsageError, suggest
from paceline.names import file_name
from paceline.planning.tuner.trials import Objective
from paceline.planning.tuner.trials.peers import RankInfo, serve
from paceline.planning.tuner.trials.processes import Processes
from paceline.runtime.engines import cluster
from paceline.runtime.engines.cluster.ray_session import package, session
from paceline.runtime.engines.cluster.roster import NodeOptions, Roster
from paceline.runtime.engines.cluster.run_spec import make_run_keys, with_keys
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, Credentials, TrustedNetwork
from paceline.runtime.links.tcp.handshake import RUN_BYTES
from paceline.training.jobs.pickling import pack_program, unpack_program

# Trials on Ray: tasks of the user's cluster, each of which starts a worker and dials the driver.
#
# Ray places the tasks and starts those again whose process or machine is lost; legs and reports do not pass through it.

TASK_PATIENCE = 60.0  # seconds in which a task has to reach the driver
SMALL = 64 << 20  # bytes that a cluster of its own has to hold


def on_ray(address: str | None, trusted: bool, workers: int | None, tune: Callable[[RankInfo], Any]) -> Any:
    """Tune with a worker in each of so many tasks; by default one for each CPU of the cluster."""
    meeting = secrets.token_bytes(RUN_BYTES)
    with session(address, workers or 1, SMALL) as where:
        ray = package()
        credentials: Credentials = TrustedNetwork(secrets.token_bytes(32)) if trusted and not where.own else LOOPBACK
        keys = {} if where.own or trusted else make_run_keys()
        tasks = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        roster = Roster(tasks, tasks, Address(where.host, 0), 0, "ray", meeting, credentials, head_rank=tasks)
        with with_keys(roster, keys) as placed:
            begun: list[Any] = []

            def listening(at: Address, objective: Objective) -> None:
                task = ray.remote(run_trials).options(num_cpus=1, max_retries=-1, scheduling_strategy="SPREAD")
                job = ray.put(pack_program(objective))
                begun.extend(task.remote(job, replace(roster, rank=rank, head=at), keys) for rank in range(tasks))

            rank_info = RankInfo(0, "Ray", tasks, placed.head, placed.credentials, meeting, listening, works=False)
            try:
                return tune(rank_info)
            except TuningError as error:
                raise _explained(error, begun) from error


def run_trials(job: bytes, roster: Roster, keys: dict[str, bytes]) -> None:
    """Run trials for the driver until its search is over: what a task of Ray does."""
    objective: Objective = unpack_program(job)
    with with_keys(roster, keys) as placed:
        rank_info = RankInfo(1 + roster.rank, "Ray", roster.nodes, placed.head, placed.credentials, placed.meeting)
        serve(rank_info, lambda terms: Processes(objective, terms, 1, threads=1), TASK_PATIENCE)


def _explained(error: TuningError, tasks: list[Any]) -> TuningError:
    """Add what the first of the tasks that failed has said."""
    ray = package()
    ended, _ = ray.wait(tasks, num_returns=len(tasks), timeout=0) if tasks else ([], [])
    for task in ended:
        try:
            ray.get(task)
        except (RunFailed, ray.exceptions.RayError) as why:
            return TuningError(f"{error}; a task of Ray: {str(why).strip().splitlines()[-1]}")
    return error


ENGINES = ("local", "cluster", "ray")
TASK, ARRAY = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID"
#: How many ranks a launcher has started on this machine.
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_LOCAL_SIZE")
ADDRESS, LOCK = "rank0.json", "rank0.lock"
PATIENCE = 600.0  # seconds in which the first rank of an array has to say where it is
AGAIN = 0.5  # seconds between two attempts

#: Tunes as one rank of several, or alone: (this rank, folder of a tuning that all tasks of an array share).
Tune = Callable[[RankInfo | None, Path | None], Any]


@dataclass(frozen=True)
class Where:
    """Where the caller wants trials to be run."""

    engine: str = "local"
    nodes: NodeOptions = field(default_factory=NodeOptions)
    workers: int | None = None

    def check(self, executor: str) -> None:
        if self.engine not in ENGINES:
            raise TuningError(f"engine={self.engine!r}; {suggest(self.engine, ENGINES)}")
        if self.engine != "local" and executor in ("here", "stacked"):
            raise TuningError(
                f"executor={executor!r} runs in one process, and engine={self.engine!r} has several: take "
                "'processes' or 'distributed'"
            )
        if self.nodes.address is not None and self.engine != "ray":
            raise UsageError("an address is that of a Ray cluster, so it needs engine='ray'")
        if self.nodes.joinable:
            raise UsageError("machines join a training by its code, and no tuning; leave joinable= out")


def engine_of(environ: Mapping[str, str] = os.environ) -> str:
    """Return the engine that the command line means: `cluster` for ranks of a launcher and tasks of an array."""
    return "cluster" if cluster.nodes(environ) > 1 or environ.get(TASK) else "local"


def local_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks share this machine, as far as their launcher says it."""
    return max(1, *(value(environ, name) for name in LOCAL_SIZES))


def meet(where: Where, folder: str | Path | None, name: str, tune: Tune) -> Any:
    """Find which rank this process is, and tune as it."""
    if where.engine == "local":
        return tune(None, None)
    if where.engine == "ray":
        return on_ray(where.nodes.address, where.nodes.trusted_network, where.workers, lambda rank: tune(rank, None))
    if cluster.nodes() < 2 and os.environ.get(TASK):
        if folder is None:
            raise TuningError("the tasks of an array meet in the tuning's folder: give one")
        return _in_array(where, Path(folder), name, tune)
    if cluster.nodes() < 2:
        raise UsageError(
            "engine='cluster' needs several ranks: start them by torchrun, srun or mpiexec, or as an array of Slurm"
        )
    roster = cluster.roster(keys=where.nodes.keys, trusted_network=where.nodes.trusted_network)
    if not roster.leads:
        roster = roster.located(PATIENCE)
    rank_info = RankInfo(
        roster.rank, roster.launcher, roster.nodes, roster.head, roster.credentials, roster.meeting, _announcer(roster)
    )
    return tune(rank_info, None)


def _announcer(roster: cluster.Roster) -> Callable[[Address, Any], None]:
    """Return what tells the other ranks where rank 0 listens."""

    def announce(address: Address, objective: Any) -> None:
        roster.listening(address.port)

    return announce


def _in_array(where: Where, runs: Path, name: str, tune: Tune) -> Any:
    """Lead the tuning if no task does; otherwise run trials for the one that leads. The next task then leads."""
    array, task = os.environ.get(ARRAY, "0"), int(os.environ[TASK])
    folder = runs / file_name(f"tune-{name}-array-{array}")
    folder.mkdir(parents=True, exist_ok=True)
    credentials = cluster.credentials(os.environ, where.nodes.keys, where.nodes.trusted_network)
    meeting = sha256(f"array {array}".encode()).digest()[:RUN_BYTES]
    end = time.monotonic() + PATIENCE
    with open(folder / LOCK, "w", encoding="utf-8") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                listens = Address("127.0.0.1" if credentials is LOOPBACK else "0.0.0.0", 0)
                publish = _publishes(folder / ADDRESS, credentials)
                return tune(RankInfo(0, f"array {array}", _tasks(), listens, credentials, meeting, publish), folder)
            try:
                head = Address(*json.loads((folder / ADDRESS).read_text(encoding="utf-8")))
                return tune(RankInfo(1 + task, f"array {array}", _tasks(), head, credentials, meeting), folder)
            except (OSError, ValueError, RunFailed) as error:
                if time.monotonic() > end:
                    raise RunFailed(f"task {task} finds no task that leads: {error}") from error
                time.sleep(AGAIN)


def _tasks() -> int | None:
    count = os.environ.get("SLURM_ARRAY_TASK_COUNT", "")
    return int(count) if count.isdecimal() else None


def _publishes(file: Path, credentials: Credentials) -> Callable[[Address, Any], None]:
    """Return what writes this task's address for the others."""

    def publish(address: Address, objective: Any) -> None:
        host = address.host if credentials is LOOPBACK else os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        draft = file.with_suffix(f".{secrets.token_hex(4)}")
        draft.write_text(json.dumps([host, address.port]))
        os.replace(draft, file)

    return publish
