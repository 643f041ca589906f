"""The recipes of pipelines, whose workers hold stages of the model: one row per published schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.algorithms.schedules import Schedule
from paceline.algorithms.schedules.gpipe import Gpipe
from paceline.algorithms.schedules.interleaved import Interleaved
from paceline.algorithms.schedules.layers import Layers
from paceline.algorithms.schedules.one_f_one_b import OneFOneB
from paceline.algorithms.schedules.pipedream import Pipedream
from paceline.algorithms.schedules.spectrain import Spectrain
from paceline.algorithms.schedules.user_table import UserTable
from paceline.algorithms.schedules.zero_bubble import ZeroBubble
from paceline.algorithms.splits.recipes.per_layer import PerLayer
from paceline.algorithms.splits.recipes.tensor import Tensor
from paceline.errors import PlanError
from paceline.plans.methods.pipeline import Pipeline, Spread
from paceline.plans.methods.server import ParameterServer
from paceline.plans.recipe import TEAM, THREADS, Kind, Recipe

BALANCE = ("time", "memory", "operations")
CUTTING = {
    "cuts": Kind(""),
    "balance": Kind("time", words=BALANCE),
    "recompute": Kind("none"),
    "memory": Kind(0, least=0),
}
#: Where a pipeline never flushes, a stage's place decides how old its weights are. A cut by the clock would give
#: another training whenever the machine is busy.
CUTTING_BY_COUNT = {**CUTTING, "balance": Kind("operations", words=BALANCE)}
PIPELINE = {**TEAM, "micro_batches": Kind(4), **CUTTING}


def _layers(workers: int, on: str, micro_batches: int, **cutting: Any) -> Pipeline:
    """Make the pipeline of `layers`, whose option `on` names the worker of each stage."""
    words = on.split("+") if on else [str(worker) for worker in range(workers)]
    if set(words) != {str(worker) for worker in range(workers)}:
        named = sorted({int(word) for word in words if word.isdigit()})
        more = f", or give workers={len(named)}" if named == list(range(len(named))) and len(named) > 1 else ""
        raise PlanError(
            f"plan 'layers': on={on!r} must name each of the workers 0 to {workers - 1}, as in on=0+1+0+1{more}"
        )
    return Pipeline(Layers(tuple(map(int, words)) if on else ()), micro_batches, **cutting)


def _pipedream(workers: int, mode: str, micro_batches: int, **cutting: Any) -> Pipeline:
    if mode == "two_buffers" and micro_batches < workers:
        raise PlanError(
            f"plan 'pipedream': mode=two_buffers makes an update of at least as many micro-batches as there are "
            f"workers; give micro_batches={workers} or more"
        )
    return Pipeline(Pipedream(mode == "two_buffers"), micro_batches, **cutting)


def _own(file: str, saved_table: str, **cutting: Any) -> Pipeline:
    """Make a pipeline by a user-defined table, from its file, or as a run saved it in case the file has changed."""
    schedule = UserTable(saved_table, file or UserTable.name) if saved_table else UserTable()
    if file and not saved_table:
        try:
            schedule = UserTable(Path(file).read_text(encoding="utf-8"), file)
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"plan 'table': {file} cannot be read: {error}") from error
    return Pipeline(schedule, schedule.micro_batches, **cutting)


def _of(schedule: Schedule) -> Any:
    def make(micro_batches: int = 1, **cutting: Any) -> Pipeline:
        return Pipeline(schedule, micro_batches, **cutting)

    return make


def _interleaved(each: int, micro_batches: int, **cutting: Any) -> Pipeline:
    return Pipeline(Interleaved(each), micro_batches, **cutting)


#: Schedules of a mesh, by the word that users write.
SCHEDULES: dict[str, Schedule] = {"one_f_one_b": OneFOneB(), "gpipe": Gpipe()}
AXES = {"data": Kind(1), "layers": Kind(0, least=0), "inside": Kind(1)}  # layers=0: as the workers allow
INSIDE = {"schedule": Kind("one_f_one_b", words=tuple(SCHEDULES)), "ways": Kind("")}


def _mesh(schedule: str, data: int, inside: int, ways: str, micro_batches: int, **cutting: Any) -> Pipeline:
    if inside > 1 and cutting.get("recompute", "none") != "none":
        raise PlanError("plan 'mesh': recompute= has no messages of its own inside a stage; leave it out, or inside=1")
    if ways and inside == 1:
        raise PlanError(
            "plan 'mesh': ways= says how the layers of a stage are split, and inside=1; give inside=2 or more"
        )
    spread = Spread(data, inside, PerLayer.parse(ways) if ways else Tensor())
    return Pipeline(SCHEDULES[schedule], micro_batches, spread=spread, **cutting)


MODES = ("asynchronous", "synchronous")


def _distbelief(
    mode: str, schedule: str, data: int, inside: int, ways: str, micro_batches: int, **cutting: Any
) -> Pipeline:
    """Make a mesh whose replicas push to a server, or add their gradients up."""
    mesh = _mesh(schedule, data, inside, ways, micro_batches, **cutting)
    server = ParameterServer() if mode == "asynchronous" else None
    return replace(mesh, spread=replace(mesh.spread, server=server))


PIPELINES: dict[str, Recipe] = {
    "layers": Recipe(
        "the model cut by depth, one micro-batch after the other",
        _layers,
        {**PIPELINE, "micro_batches": Kind(1), "on": Kind("")},
    ),
    "gpipe": Recipe("a pipeline: all forwards, all backwards, then the update", _of(Gpipe()), PIPELINE),
    "one_f_one_b": Recipe("a pipeline: forwards and backwards alternate, then the update", _of(OneFOneB()), PIPELINE),
    "zero_bubble": Recipe(
        "a pipeline: backward in two halves, of which the second fills gaps", _of(ZeroBubble()), PIPELINE
    ),
    "interleaved": Recipe(
        "a pipeline: 1F1B with several stages at every worker", _interleaved, {**PIPELINE, "each": Kind(2)}
    ),
    "pipedream": Recipe(
        "an asynchronous pipeline: never flushed, with stashed weights",
        _pipedream,
        {
            **PIPELINE,
            **CUTTING_BY_COUNT,
            "micro_batches": Kind(1),
            "mode": Kind("stash", words=("stash", "two_buffers")),
        },
    ),
    "spectrain": Recipe(
        "an asynchronous pipeline: never flushed, with predicted weights",
        _of(Spectrain()),
        {**TEAM, **{key: kind for key, kind in CUTTING_BY_COUNT.items() if key != "recompute"}},
    ),
    "mesh": Recipe(
        "replicas of a pipeline whose stages are split inside: data x layers x inside",
        _mesh,
        {**PIPELINE, **AXES, **INSIDE},
    ),
    "distbelief": Recipe(
        "replicas of split pipelines, with shards of a parameter server between them",
        _distbelief,
        {**PIPELINE, **AXES, **INSIDE, "mode": Kind("asynchronous", words=MODES)},
    ),
    "table": Recipe("a pipeline by a table of your own", _own, {"threads": THREADS, "file": Kind(""), **CUTTING}),
}
