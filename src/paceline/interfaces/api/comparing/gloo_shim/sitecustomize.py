"""Run by Python at the start of every process of a measured script; imports nothing until the script imports torch.

torch.distributed   gets another word than gloo, if PACELINE_STAND_IN says so
torch.optim         tells when steps are made; at the end they are written into the folder PACELINE_STEPS
torch               records the first step into the folder PACELINE_FIRST_STEP instead (`first_step`)
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Does something to a module as soon as it is there."""

    def __init__(self, what: dict[str, Callable[[ModuleType], None]]) -> None:
        self.what = what

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        act = self.what.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if act is not None else None
        if spec is None or spec.loader is None or act is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def stand_in(c10d: ModuleType) -> None:
    """`init_process_group` with another word where gloo was asked for, or nothing."""
    original, word = c10d.init_process_group, os.environ["PACELINE_STAND_IN"]

    def init_process_group(backend: str | None = None, *args: Any, **more: Any) -> Any:
        if word == "paceline":
            import paceline.runtime.backend  # noqa: F401

        return original(word if backend is None else backend.replace("gloo", word), *args, **more)

    c10d.init_process_group = init_process_group  # type: ignore[attr-defined]


def count_steps(optim: ModuleType) -> None:
    ends: list[float] = []
    latest: list[Any] = []

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        ends.append(time.perf_counter())
        latest[:] = [optimizer]

    optim.register_optimizer_step_post_hook(stepped)

    def notify() -> None:
        if not ends:
            return
        import torch

        rank = os.environ.get("RANK", str(os.getpid()))
        if sys.modules["torch.distributed"].is_initialized():
            rank = str(sys.modules["torch.distributed"].get_rank())
        folder = Path(os.environ["PACELINE_STEPS"])
        (folder / f"{rank}.json").write_text(json.dumps(ends))
        parameters = [p.detach() for group in latest[0].param_groups for p in group["params"]]
        # Every rank holds a part of a sharded parameter, and has to give it.
        tensors = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters]
        if rank == "0":
            torch.save([p.cpu() for p in tensors], folder / "parameters.pt")

    atexit.register(notify)


def record_first_step(torch: ModuleType) -> None:
    from paceline.interfaces.api.comparing.gloo_shim.first_step import record

    record()


if "PACELINE_FIRST_STEP" in os.environ:
    sys.meta_path.insert(0, AfterImport({"torch": record_first_step}))
if "PACELINE_STEPS" in os.environ:
    sys.meta_path.insert(
        0, AfterImport({"torch.distributed.distributed_c10d": stand_in, "torch.optim.optimizer": count_steps})
    )

# Run the sitecustomize that Python would have found without this one.
_others = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).parent]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
