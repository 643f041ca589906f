"""The engines by name, each with what it is called with; a further engine is a row of `ENGINES`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.plans.plan import Plan
from paceline.runtime.engines import mpi
from paceline.runtime.engines.cluster import NodeOptions, Roster
from paceline.runtime.engines.outcome import Life, Outcome
from paceline.runtime.runs.live import Phase
from paceline.runtime.runs.record import CheckpointInterval
from paceline.training.jobs.job import Job

if TYPE_CHECKING:
    from paceline.runtime.engines.cluster.successor import Successor
    from paceline.runtime.engines.joining.parcel import Parcel
    from paceline.runtime.engines.virtual import World


@dataclass(frozen=True)
class Request:
    """What `train` was asked for, checked and with its words read."""

    job: Job | None
    plan: str | Plan | None
    workers: int | None
    #: A name of `ENGINES`.
    engine: str
    #: Where the run's folder is created; None writes nothing to disk.
    folder: Path | None
    max_updates: int | None
    timeout: float
    #: When checkpoints are taken; None: never.
    interval: CheckpointInterval | None
    world: World | None = None
    #: The folder of a run to resume, and the epochs that it is to have in all.
    resume: Path | None = None
    epochs: int | None = None
    callbacks: Sequence[Any] = ()
    #: Whether some of these may stop the run.
    stoppable: bool = False
    #: This process's place among the nodes of a launcher; None under other engines.
    node: Roster | None = None
    #: How the nodes of a cluster or of Ray come together.
    nodes: NodeOptions = field(default_factory=NodeOptions)
    #: What this node has if it leads a run whose head is lost.
    successor: Successor | None = None
    #: What travels to machines that join, if they may.
    parcel: Parcel | None = None

    @property
    def leads(self) -> bool:
        """Whether this process leads the run: it alone warns of the job, evaluates, calls back and has a folder."""
        if self.engine == "mpi":
            return mpi.rank() == 0
        return self.node is None or self.node.leads or self.successor is not None


@dataclass(frozen=True)
class Engine:
    """What runs a plan."""

    #: Trains; the outcome may read memory that is released at the end of the block.
    train: Callable[[Life, Request], AbstractContextManager[Outcome]]
    #: Whether it keeps checkpoints.
    keeps: bool = False


def _local(life: Life, request: Request) -> AbstractContextManager[Outcome]:
    from paceline.runtime.engines.local import worker_pool

    return worker_pool.train(life)


def _cluster(life: Life, request: Request) -> AbstractContextManager[Outcome]:
    from paceline.runtime.engines.cluster import engine

    assert request.node is not None
    if request.parcel is not None and request.leads:
        from paceline.runtime.engines.joining import open_nodes

        return open_nodes.train(life, request.node, request.parcel, request.successor, request.nodes.backups)
    if request.successor is not None:
        return engine.lead(life, request.successor, request.nodes.backups)
    return engine.train(life, request.node, request.nodes.backups)


def _ray(life: Life, request: Request) -> AbstractContextManager[Outcome]:
    from paceline.runtime.engines.cluster import ray_nodes

    return ray_nodes.train(life, request.nodes)


def _mpi(life: Life, request: Request) -> AbstractContextManager[Outcome]:
    return _in_this_process(life, lambda: mpi.train(life.setup))


def _virtual(life: Life, request: Request) -> AbstractContextManager[Outcome]:
    from paceline.runtime.engines import virtual

    return _in_this_process(life, lambda: virtual.train(life.setup, request.world or virtual.World()))


@contextlib.contextmanager
def _in_this_process(life: Life, train: Callable[[], Outcome]) -> Iterator[Outcome]:
    """Train in one call, which neither reports its progress nor writes the trace meanwhile."""
    life.heartbeat.beat(Phase.TRAINING, 0)
    outcome = train()
    life.heartbeat.beat(Phase.EVALUATING, life.setup.agenda.updates)
    life.place.write_trace(outcome.trace)
    yield outcome


ENGINES = {
    "local": Engine(_local, keeps=True),
    "virtual": Engine(_virtual),
    "mpi": Engine(_mpi),
    "cluster": Engine(_cluster, keeps=True),
    "ray": Engine(_ray, keeps=True),
}
#: The engines that keep checkpoints.
KEEPING = tuple(name for name, engine in ENGINES.items() if engine.keeps)
