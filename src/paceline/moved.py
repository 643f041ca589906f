"""Modules by the names that they had before, which pickles of earlier runs and programs of users still import.

`paceline.backend`, `paceline.adapters`, `paceline.callbacks` and `paceline.testing` are public names and stay.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PARTS = {
    "training": "jobs data shards preparation gradients parameters stages splits operators",
    "runtime": "links runs report engines backend",
    "planning": "planner tuner explain",
    "concurrency": "check watcher",
    "interfaces": "api cli callbacks adapters testing emit",
}
#: Modules that were joined, by what they are joined in: siblings of it, or in the folder of its name.
_JOINED = {
    "algorithms.codecs.narrow": "half bfloat16 int8",
    "algorithms.codecs.quantized": "qsgd ternary one_bit",
    "algorithms.codecs.sparse": "top_k random_k threshold",
    "algorithms.collectives.rings": "ring hierarchical",
    "algorithms.collectives.trees": "tree central",
    "algorithms.collectives.whole_vectors": "neighbours gather",
    "algorithms.rules.averaging": "map_reduce model_averaging d_psgd ad_psgd easgd diloco",
    "algorithms.rules.gradients": "plain dc_asgd gap_aware",
    "algorithms.schedules.with_flush": "layers gpipe one_f_one_b interleaved zero_bubble",
    "algorithms.schedules.without_flush": "pipedream spectrain",
    "algorithms.splits": "splits.nodes mesh",
    "algorithms.splits.ways": "columns experts strips",
    "planning.tuner.varied": "best suggested",
    "plans.methods.all_reduce": "alone native",
    "plans.methods.split_layers": "dataflow",
    "plans.plan": "sizes",
    "plans.recipe": "codecs",
    "runtime.engines.cluster.ray_nodes": "ray_actors",
}
MOVED = {
    "core": "algorithms",
    "callbacks.early_stopping": "interfaces.callbacks.watching",
    "callbacks.best_checkpoint": "interfaces.callbacks.watching",
    "testing.survival.timing": "interfaces.testing.survival.faults",
    "training.data.mix": "training.data.opening",
    "training.data.shard_stream": "training.data.shards",
    "training.gradients.pickling": "training.jobs.pickling",
    "training.jobs.experts": "training.jobs.modules",
    "training.jobs.toml_file": "training.jobs.loading",
    **{part: f"{wing}.{part}" for wing, parts in _PARTS.items() for part in parts.split()},
    "job": "training.jobs.job",
    "modules": "training.jobs.modules",
    "compute.through_time": "training.stages.through_time",
    **{f"{now.rpartition('.')[0]}.{old}": now for now, names in _JOINED.items() for old in names.split()},
}


def name_now(module: str) -> str | None:
    """Return the name of a module of paceline that had this name; None if it was not moved."""
    if not module.startswith("paceline."):  # asked for every module that any program imports
        return None
    name = module.removeprefix("paceline.")
    now = name
    while part := next((part for part in MOVED if f"{now}.".startswith(f"{part}.")), None):  # of more than one move
        now = f"{MOVED[part]}{now[len(part) :]}"
    return None if now == name else f"paceline.{now}"


class Forwarding(MetaPathFinder, Loader):
    """Imports a module by its earlier name: the same object, not a second one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # A folder of an earlier version may still lie there with compiled files: this comes before the search for it.
        now = name_now(fullname)
        return None if now is None or importlib.util.find_spec(now) is None else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        now = name_now(spec.name)
        assert now is not None
        module = importlib.import_module(now)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # its own again


def forward() -> None:
    """Import earlier names as those of today, from now on."""
    if not any(isinstance(each, Forwarding) for each in sys.meta_path):
        sys.meta_path.insert(0, Forwarding())
