"""What each rank has of its own, although all are threads of one process: it is swapped when another rank continues."""

from __future__ import annotations

import os
import random
import sys
from types import SimpleNamespace
from typing import Any

from paceline.concurrency.explore.interpose.control import MARK


class Context:
    """The program's modules, the environment, random numbers and process groups of a rank."""

    def __init__(self, rank: int | None, environment: dict[str, str]) -> None:
        import torch

        self.rank = rank
        self.handlers: dict[int, Any] = {}  # of signals
        self._environment = environment
        self._modules: dict[str, Any] = {}
        self._world: Any = _empty_world()
        # Each process would draw its own seed at its start; runs must repeat themselves, so it is the rank's number.
        self._torch = torch.Generator().manual_seed(1_000 + (rank or 0)).get_state()
        self._python = random.Random(1_000 + (rank or 0)).getstate()
        self._numpy: Any = None

    def leave(self) -> None:
        """Keep what is this rank's."""
        import torch
        from torch.distributed import distributed_c10d

        self._environment = dict(os.environ)
        self._modules = {
            name: module for name, module in sys.modules.items() if MARK in getattr(module, "__dict__", {})
        }
        for name in self._modules:
            del sys.modules[name]
        self._world = distributed_c10d._world
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        if "numpy" in sys.modules:
            self._numpy = sys.modules["numpy"].random.get_state()

    def enter(self) -> None:
        """Put it back in place."""
        import torch
        from torch.distributed import distributed_c10d

        os.environ.clear()
        os.environ.update(self._environment)
        sys.modules.update(self._modules)
        distributed_c10d._world = self._world
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        elif "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(1_000 + (self.rank or 0))


def _empty_world() -> SimpleNamespace:
    """Return what PyTorch keeps of the process groups of a process, before it has any; all its own worlds share one."""
    from torch.distributed.distributed_c10d import _World

    world = _World()
    names = [name for name, kind in vars(_World).items() if isinstance(kind, property) and name != "pg_config_info"]
    values = {name: getattr(world, name) for name in names}  # the one left out is computed from these
    return SimpleNamespace(**{name: value if value is None else type(value)() for name, value in values.items()})


def torchrun_environment(rank: int, ranks: int) -> dict[str, str]:
    """Return the environment that torchrun gives a rank on one machine."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "ROLE_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": "explored",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
