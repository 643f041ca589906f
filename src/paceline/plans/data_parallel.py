"""The recipes of data parallelism: one row per published way of training replicas of the whole model."""

from __future__ import annotations

from paceline.algorithms.collectives.central import Central
from paceline.algorithms.collectives.halving_doubling import HalvingDoubling
from paceline.algorithms.collectives.hierarchical import Hierarchical
from paceline.algorithms.collectives.neighbours import GRAPHS, Neighbours
from paceline.algorithms.collectives.ring import Ring
from paceline.algorithms.collectives.tree import Tree
from paceline.algorithms.coordinators.lbfgs import Lbfgs
from paceline.algorithms.rules.ad_psgd import AdPsgd
from paceline.algorithms.rules.d_psgd import DPsgd
from paceline.algorithms.rules.dc_asgd import PUBLISHED_LAMBDA, DcAsgd
from paceline.algorithms.rules.diloco import Diloco, OuterExchange
from paceline.algorithms.rules.easgd import Easgd, ElasticExchange
from paceline.algorithms.rules.gap_aware import GapAware
from paceline.algorithms.rules.map_reduce import MapReduce
from paceline.algorithms.rules.model_averaging import ModelAveraging
from paceline.algorithms.server.gates.backup import Backup
from paceline.algorithms.server.gates.stale_synchronous import StaleSynchronous
from paceline.errors import PlanError
from paceline.plans.methods import Method
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.coordinated import Coordinated
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer
from paceline.plans.recipe import CANONICAL, PULLED, SERVER, SIZES, SUMMED, TEAM, THREADS, Kind, Recipe

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
