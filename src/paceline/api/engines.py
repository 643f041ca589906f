"""The engines by name, each with what it is called with; a further engine is a row of `ENGINES`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.engines.checkpoints import CheckpointRequest
from paceline.engines.outcome import Outcome
from paceline.engines.setup import Setup
from paceline.runs.folder import RunFolder
from paceline.runs.live import Heartbeat, Phase
from paceline.runs.progress import ProgressCallback

if TYPE_CHECKING:
    from paceline.engines.cluster import Roster
    from paceline.engines.virtual import World


@dataclass(frozen=True)
class Settings:
    """The arguments of `train` that concern the engine."""

    #: A name of `ENGINES`.
    engine: str
    progress: ProgressCallback | None
    timeout: float
    world: World | None
    callbacks: Sequence[Any]
    #: This process's place among the nodes of a launcher; None under other engines.
    node: Roster | None = None
    backups: int = 1
    #: Of engine ray: which cluster of Ray to join, and whether its network needs no encryption.
    address: str | None = None
    trusted_network: bool = False


@dataclass(frozen=True)
class Life:
    """A run from its start, or from a checkpoint, on."""

    setup: Setup
    place: RunFolder
    #: The checkpoints to write, and the one to begin with; None where the run keeps none.
    request: CheckpointRequest | None
    settings: Settings
    heartbeat: Heartbeat


@dataclass(frozen=True)
class Engine:
    """What runs a plan."""

    #: Trains; the outcome may read memory that is released at the end of the block.
    train: Callable[[Life], AbstractContextManager[Outcome]]
    #: Whether it keeps checkpoints.
    keeps: bool = False


def _local(life: Life) -> AbstractContextManager[Outcome]:
    from paceline.engines.local import worker_pool

    settings = life.settings
    return worker_pool.train(
        life.setup, life.place.path, life.heartbeat, settings.progress, settings.timeout, life.request
    )


def _cluster(life: Life) -> AbstractContextManager[Outcome]:
    from paceline.engines.cluster import engine

    settings = life.settings
    assert settings.node is not None
    return engine.train(
        life.setup, settings.node, life.place.path, life.heartbeat, settings.progress, settings.timeout, life.request,
        settings.backups,
    )  # fmt: skip


def _ray(life: Life) -> AbstractContextManager[Outcome]:
    from paceline.engines.cluster import ray_nodes
    from paceline.engines.cluster.ray_session import RayOptions

    settings = life.settings
    ray = RayOptions(settings.address, settings.trusted_network)
    return ray_nodes.train(
        life.setup, ray, life.place.path, life.heartbeat, settings.progress, settings.timeout, life.request,
        settings.backups,
    )  # fmt: skip


def _mpi(life: Life) -> AbstractContextManager[Outcome]:
    from paceline.engines import mpi

    return _in_this_process(life, lambda: mpi.train(life.setup))


def _virtual(life: Life) -> AbstractContextManager[Outcome]:
    from paceline.engines import virtual

    return _in_this_process(life, lambda: virtual.train(life.setup, life.settings.world or virtual.World()))


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
