"""The named plans: one row per published way of training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

from paceline.algorithms.collectives.halving_doubling import HalvingDoubling
from paceline.algorithms.collectives.rings import Hierarchical, Ring
from paceline.algorithms.collectives.trees import Central, Tree
from paceline.algorithms.collectives.whole_vectors import GRAPHS, Neighbours
from paceline.algorithms.coordinators.lbfgs import Lbfgs
from paceline.algorithms.rules.averaging import (
    AdPsgd,
    Diloco,
    DPsgd,
    Easgd,
    ElasticExchange,
    MapReduce,
    ModelAveraging,
    OuterExchange,
)
from paceline.algorithms.rules.gradients import PUBLISHED_LAMBDA, DcAsgd, GapAware
from paceline.algorithms.schedules import Schedule
from paceline.algorithms.schedules.user_table import UserTable
from paceline.algorithms.schedules.with_flush import Gpipe, Interleaved, Layers, OneFOneB, ZeroBubble
from paceline.algorithms.schedules.without_flush import Pipedream, Spectrain
from paceline.algorithms.server.gates import Backup, StaleSynchronous
from paceline.algorithms.splits.recipes import (
    Cannon,
    Experts,
    OneWeirdTrick,
    PerLayer,
    Redundant,
    SplitRecipe,
    Tensor,
    Zero,
)
from paceline.errors import PlanError
from paceline.plans.methods import Method
from paceline.plans.methods.all_reduce import AllReduce, Alone, NativeDdp
from paceline.plans.methods.coordinated import Coordinated
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.pipeline import Pipeline, Spread
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer
from paceline.plans.methods.split_layers import Dataflow, SplitLayers
from paceline.plans.recipe import CANONICAL, PULLED, SERVER, SIZES, SUMMED, TEAM, THREADS, Kind, Recipe

# The recipes of data parallelism: one row per published way of training replicas of the whole model.

MODES = Kind("synchronous", words=("synchronous", "asynchronous"))


def _backup(workers: int, backups: int) -> Method:
    needed = max(1, workers - backups)
    return GatheringServer(Backup(needed), needed)


def _dc_asgd(shards: int, mode: str, lam: float | None) -> Method:
    return ParameterServer(rule=DcAsgd(PUBLISHED_LAMBDA[mode] if lam is None else lam, mode), shards=shards)


def _parallel_sgd(mode: str, parts: int) -> Method:
    return LocalSteps(Ring(), ModelAveraging(0)) if mode == "synchronous" else CentreServer(MapReduce(parts))


def _easgd(mode: str, workers: int, every: int, spring: float | None) -> Method:
    if mode == "synchronous":
        return LocalSteps(Ring(), Easgd(workers, every, spring))
    return CentreServer(ElasticExchange(workers, every, spring))


def _diloco(mode: str, workers: int, every: int, fragments: int, overlap: int, rate: float, momentum: float) -> Method:
    if (fragments > 1 or overlap) and mode != "synchronous":
        raise PlanError(
            "plan 'diloco': fragments and overlap belong to mode=synchronous, in which all workers exchange at once"
        )
    if fragments > every:
        raise PlanError(
            f"plan 'diloco': fragments={fragments} with every={every}: at most one fragment is exchanged after an "
            f"update, so there are at most {every}"
        )
    if overlap > every // fragments:
        raise PlanError(
            f"plan 'diloco': overlap={overlap} with every={every} and fragments={fragments}: an exchange is applied "
            f"before the next one begins, so overlap is at most every / fragments, here {every // fragments}"
        )
    if mode == "synchronous":
        return LocalSteps(Ring(), Diloco(every, rate, momentum), fragments, overlap)
    return CentreServer(OuterExchange(workers, every, rate, momentum))


def _gossip(mode: str, graph: str) -> Method:
    return Gossip(Neighbours(graph), DPsgd()) if mode == "synchronous" else PairwiseGossip(AdPsgd(graph))


DATA_PARALLEL: dict[str, Recipe] = {
    "sequential": Recipe(
        "one process; chunks=N is the oracle of N workers",
        Alone,
        {"chunks": Kind(1), "threads": THREADS, "sizes": SIZES, "canonical": CANONICAL},
    ),
    "ring": Recipe("synchronous all-reduce around a ring", lambda: AllReduce(Ring()), SUMMED),
    "tree": Recipe("synchronous, up a tree and down again: short vectors", lambda: AllReduce(Tree()), SUMMED),
    "halving_doubling": Recipe(
        "synchronous, halves with distant partners first", lambda: AllReduce(HalvingDoubling()), SUMMED
    ),
    "hierarchical": Recipe(
        "synchronous, within groups, then between them",
        lambda groups: AllReduce(Hierarchical(groups)),
        {**SUMMED, "groups": Kind(2)},
    ),
    "central": Recipe(
        "synchronous parameter server: one place sums the gradients", lambda: AllReduce(Central()), SUMMED
    ),
    "downpour": Recipe("asynchronous parameter server", lambda shards: ParameterServer(shards=shards), PULLED),
    "ssp": Recipe(
        "asynchronous, no worker more than `bound` batches ahead",
        lambda shards, bound: ParameterServer(StaleSynchronous(bound), shards=shards),
        {**PULLED, "bound": Kind(3, least=0)},
    ),
    "backup": Recipe(
        "synchronous, without the `backups` slowest workers", _backup, {**TEAM, "backups": Kind(1, least=0)}
    ),
    "dc_asgd": Recipe(
        "asynchronous, old gradients corrected towards the newest parameters",
        _dc_asgd,
        {**SERVER, "mode": Kind("constant", words=tuple(PUBLISHED_LAMBDA)), "lam": Kind(None, least=0)},
    ),
    "gap_aware": Recipe(
        "asynchronous, old gradients divided by how far the parameters have moved since",
        lambda shards: ParameterServer(rule=GapAware(), shards=shards),
        SERVER,
    ),
    "hogwild": Recipe("asynchronous, all workers change the same memory without locks", Hogwild, TEAM),
    "local_sgd": Recipe(
        "local steps, periodically the mean of all replicas",
        lambda every: LocalSteps(Ring(), ModelAveraging(every)),
        {**TEAM, "every": Kind(10)},
    ),
    "parallel_sgd": Recipe(
        "every worker alone, and the mean at the end",
        _parallel_sgd,
        {**TEAM, "mode": Kind("synchronous", words=("synchronous", "map_reduce")), "parts": Kind(8)},
    ),
    "easgd": Recipe(
        "local steps, replicas pulled towards a centre by an elastic force",
        _easgd,
        {**TEAM, "mode": MODES, "every": Kind(10), "spring": Kind(None, least=0)},
    ),
    "diloco": Recipe(
        "many local steps, then one outer step with momentum",
        _diloco,
        {
            **TEAM,
            "codec": Kind("dense"),
            "mode": MODES,
            "every": Kind(50),
            "fragments": Kind(1),
            "overlap": Kind(0, least=0),
            "rate": Kind(0.7, least=0.0),
            "momentum": Kind(0.9, least=0.0),
        },
    ),
    "gossip": Recipe(
        "every worker mixes with its neighbours on a graph; there is no centre",
        _gossip,
        {**TEAM, "mode": MODES, "graph": Kind("ring", words=GRAPHS)},
    ),
    "sandblaster": Recipe(
        "L-BFGS, synchronous: a coordinator commands shards and workers",
        lambda memory: Coordinated(Ring(), Lbfgs(memory)),
        {**TEAM, "memory": Kind(10)},
    ),
}

PEERS: dict[str, Recipe] = {
    "ceiling": Recipe("workers that exchange nothing: the speed no plan can beat", Alone, TEAM),
    "ddp": Recipe("PyTorch's DistributedDataParallel over gloo", NativeDdp, TEAM),
}


# The recipes of pipelines, whose workers hold stages of the model: one row per published schedule.

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


OF_REPLICAS = ("asynchronous", "synchronous")


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
        {**PIPELINE, **AXES, **INSIDE, "mode": Kind("asynchronous", words=OF_REPLICAS)},
    ),
    "table": Recipe("a pipeline by a table of your own", _own, {"threads": THREADS, "file": Kind(""), **CUTTING}),
}


# The recipes of plans that split layers, or a model into operators: one row per published way.

REPLICAS = {**TEAM, "data": Kind(1), "memory": Kind(0, least=0)}


def _split(recipe: SplitRecipe, data: int, memory: int, stage: int = 0) -> SplitLayers:
    return SplitLayers(recipe, Ring(), data, stage, memory)


def _cannon(workers: int, data: int, memory: int) -> SplitLayers:
    """Split linear layers on square grids, of which each replica has one."""
    grid = workers // data
    if isqrt(grid) ** 2 != grid or workers % data:
        fits = ", ".join(str(data * side * side) for side in (2, 3, 4))
        grids = "a square grid" if data == 1 else f"{data} square grids of one size"
        raise PlanError(f"plan 'cannon': {workers} workers do not form {grids}; give workers={fits} or so")
    return _split(Cannon(), data, memory)


def _ampnet(micro_batches: int, active: int, every: int, on: str) -> Dataflow:
    words = on.split("+") if on else []
    if not all(word.isdigit() for word in words):
        raise PlanError(f"plan 'ampnet': on={on!r} is not a worker for each operator, as in on=0+1+0")
    return Dataflow(micro_batches, active, every, tuple(map(int, words)))


SPLIT: dict[str, Recipe] = {
    "tensor": Recipe(
        "layers split in pairs: by what the first makes and the second takes",
        partial(_split, Tensor()),
        REPLICAS,
    ),
    "redundant": Recipe(
        "borders of images and small layers computed again, instead of sent",
        lambda small, data, memory: _split(Redundant(small), data, memory),
        {**REPLICAS, "small": Kind(16384, least=0)},
    ),
    "per_layer": Recipe(
        "each layer split in the way that your table says",
        lambda ways, data, memory: _split(PerLayer.parse(ways), data, memory),
        {**REPLICAS, "ways": Kind("")},
    ),
    "zero": Recipe(
        "replicas whose optimizer state, gradients and parameters lie in shares",
        partial(_split, Zero()),
        {**REPLICAS, "stage": Kind(3, least=1, most=3)},
    ),
    "experts": Recipe(
        "experts of a mixture divided among workers, everything else by samples",
        partial(_split, Experts()),
        REPLICAS,
    ),
    "cannon": Recipe(
        "linear layers as products of blocks on a square grid of workers",
        _cannon,
        {**REPLICAS, "workers": Kind(4)},
    ),
    "one_weird_trick": Recipe(
        "convolutions split by samples, dense layers by their outputs",
        partial(_split, OneWeirdTrick()),
        REPLICAS,
    ),
    "ampnet": Recipe(
        "operators that compute whenever a message is there, for many chunks at a time",
        _ampnet,
        {**TEAM, "micro_batches": Kind(1), "active": Kind(4), "every": Kind(1), "on": Kind("")},
    ),
}
