"""Starts ranks, each with random numbers and process groups of its own, as torchrun or a program itself would."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import _World
from torch.utils.data import DataLoader

from paceline.concurrency.explore.interpose import threads
from paceline.concurrency.explore.interpose.memory import Context
from paceline.concurrency.explore.interpose.processes import Process, afresh, present
from paceline.concurrency.explore.ranks import drills, mpi, process_group
from paceline.concurrency.explore.scheduler import Task


class TorchState:
    """The random numbers and process groups of a rank."""

    def __init__(self, rank: int) -> None:
        self._rank, self._seed = rank, 1_000 + rank
        self._libraries: dict[int, dict[str, Any]] = {}
        self._world: Any = _empty_world()
        self._torch, self._numpy = torch.Generator().manual_seed(self._seed).get_state(), None

    def leave(self) -> None:
        self._world, self._torch = distributed_c10d._world, torch.get_rng_state()
        if "numpy" in sys.modules:
            self._numpy = sys.modules["numpy"].random.get_state()
        self._libraries = {id(state): dict(state) for state, _ in _of_libraries(self._rank)}

    def enter(self) -> None:
        distributed_c10d._world = self._world
        torch.set_rng_state(self._torch)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        elif "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self._seed)
        for state, first in _of_libraries(self._rank):
            own = self._libraries.get(id(state), first)
            state.clear()
            state.update(own)


def _of_libraries(rank: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return what accelerate and Lightning keep once for a process, and what it is when a rank begins."""
    accelerate: Any = sys.modules.get("accelerate.state")
    lightning: Any = sys.modules.get("lightning_utilities.core.rank_zero")
    names = ("PartialState", "AcceleratorState", "GradientState")
    states: list[Any] = [(getattr(accelerate, name)._shared_state, {}) for name in names if hasattr(accelerate, name)]
    function = vars(getattr(lightning, "rank_zero_only", SimpleNamespace()))
    return [*states, (function, {**function, "rank": rank})]


def _empty_world() -> SimpleNamespace:
    """Return what PyTorch keeps of the process groups of a process, before it has any; all its own worlds share one."""
    world = _World()
    names = [name for name, kind in vars(_World).items() if isinstance(kind, property) and name != "pg_config_info"]
    values = {name: getattr(world, name) for name in names}  # the one left out is computed from these
    return SimpleNamespace(**{name: value if value is None else type(value)() for name, value in values.items()})


def torchrun_environment(rank: int, ranks: int) -> dict[str, str]:
    of_rank = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    of_all = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(ranks))
    of_node = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    of_restarts = {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}
    others = {"ROLE_NAME": "default", "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "explored"}
    return {**os.environ, **of_rank, **of_all, **of_node, **of_restarts, **others}


def run_ranks(body: Callable[[], Any], ranks: int) -> None:
    """Run the body on so many ranks, in the environment of torchrun, and wait for all."""
    tasks = [start_rank(rank, body, torchrun_environment(rank, ranks)) for rank in range(ranks)]
    for task in tasks:
        threads.wait_for_end(task)


def start_rank(rank: int, body: Callable[[], Any], environment: dict[str, str]) -> Task:
    def rank_body() -> None:
        torch.autograd.set_multithreading_enabled(False)
        body()

    present()
    return threads.start_task(f"rank {rank}", rank_body, Context(rank, environment))


def _spawn(fn: Any, args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any) -> Any:
    """Run `fn(rank, *args)` on ranks that import the script anew, as spawned processes do."""

    def body_of(rank: int) -> Callable[[], Any]:
        return lambda: afresh(fn)(rank, *args)

    tasks = [start_rank(rank, body_of(rank), dict(os.environ)) for rank in range(nprocs)]

    def joined(timeout: float | None = None) -> bool:
        return all(threads.wait_for_end(task, timeout) for task in tasks)

    return None if join and joined() else SimpleNamespace(join=joined)


_loader_init = DataLoader.__init__


def _loader_without_processes(self: Any, *args: Any, **settings: Any) -> None:
    """Read in the rank itself: a worker process cannot be forked from one of several threads."""
    if settings.get("num_workers"):
        settings |= {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0}
    _loader_init(self, *args, **settings)


@cache
def install() -> None:
    """Put the modelled backend and launchers in place."""
    process_group.install()
    mpi.install()
    drills.install()
    modules: tuple[Any, ...] = (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"])
    for module in modules:
        module.spawn = _spawn
    Context.parts.append(TorchState)
    Process.are_ranks = True
    DataLoader.__init__ = _loader_without_processes  # type: ignore[method-assign]
    torch.set_num_threads(1)
