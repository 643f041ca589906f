# Written by `python docs/_site/plan_stubs.py` from the table of recipes.
from collections.abc import Callable, Iterator
from typing import Any, Literal

from paceline.plans.plan import Plan
from paceline.plans.recipe import Kind

def class_name(plan: str) -> str: ...
def constructor_of(name: str) -> Callable[..., Plan] | None: ...
def constructors() -> Iterator[str]: ...
def type_of(kind: Kind) -> Any: ...

__all__ = [
    "Ampnet",
    "Backup",
    "Cannon",
    "Ceiling",
    "Central",
    "DcAsgd",
    "Ddp",
    "Diloco",
    "Distbelief",
    "Downpour",
    "Easgd",
    "Experts",
    "GapAware",
    "Gossip",
    "Gpipe",
    "HalvingDoubling",
    "Hierarchical",
    "Hogwild",
    "Interleaved",
    "Layers",
    "LocalSgd",
    "Mesh",
    "OneFOneB",
    "OneWeirdTrick",
    "ParallelSgd",
    "PerLayer",
    "Pipedream",
    "Redundant",
    "Ring",
    "Sandblaster",
    "Sequential",
    "Spectrain",
    "Ssp",
    "Table",
    "Tensor",
    "Tree",
    "Zero",
    "ZeroBubble",
]

def Sequential(  # noqa: N802
    *,
    chunks: int = 1,
    threads: int = 1,
    sizes: str = "",
    canonical: int = 0,
) -> Plan:
    """Plan `sequential`: one process; chunks=N is the oracle of N workers."""

def Ring(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    sizes: str = "",
    canonical: int = 0,
) -> Plan:
    """Plan `ring`: synchronous all-reduce around a ring."""

def Tree(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    sizes: str = "",
    canonical: int = 0,
) -> Plan:
    """Plan `tree`: synchronous, up a tree and down again: short vectors."""

def HalvingDoubling(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    sizes: str = "",
    canonical: int = 0,
) -> Plan:
    """Plan `halving_doubling`: synchronous, halves with distant partners first."""

def Hierarchical(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    sizes: str = "",
    canonical: int = 0,
    groups: int = 2,
) -> Plan:
    """Plan `hierarchical`: synchronous, within groups, then between them."""

def Central(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    sizes: str = "",
    canonical: int = 0,
) -> Plan:
    """Plan `central`: synchronous parameter server: one place sums the gradients."""

def Downpour(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    shards: int = 1,
    chunks: int = 1,
    pull: str = "dense",
) -> Plan:
    """Plan `downpour`: asynchronous parameter server."""

def Ssp(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    shards: int = 1,
    chunks: int = 1,
    pull: str = "dense",
    bound: int = 3,
) -> Plan:
    """Plan `ssp`: asynchronous, no worker more than `bound` batches ahead."""

def Backup(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    backups: int = 1,
) -> Plan:
    """Plan `backup`: synchronous, without the `backups` slowest workers."""

def DcAsgd(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    shards: int = 1,
    chunks: int = 1,
    mode: Literal["constant", "adaptive"] = "constant",
    lam: float | None = None,
) -> Plan:
    """Plan `dc_asgd`: asynchronous, old gradients corrected towards the newest parameters."""

def GapAware(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    shards: int = 1,
    chunks: int = 1,
) -> Plan:
    """Plan `gap_aware`: asynchronous, old gradients divided by how far the parameters have moved since."""

def Hogwild(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
) -> Plan:
    """Plan `hogwild`: asynchronous, all workers change the same memory without locks."""

def LocalSgd(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    every: int = 10,
) -> Plan:
    """Plan `local_sgd`: local steps, periodically the mean of all replicas."""

def ParallelSgd(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    mode: Literal["synchronous", "map_reduce"] = "synchronous",
    parts: int = 8,
) -> Plan:
    """Plan `parallel_sgd`: every worker alone, and the mean at the end."""

def Easgd(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    mode: Literal["synchronous", "asynchronous"] = "synchronous",
    every: int = 10,
    spring: float | None = None,
) -> Plan:
    """Plan `easgd`: local steps, replicas pulled towards a centre by an elastic force."""

def Diloco(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    codec: str = "dense",
    mode: Literal["synchronous", "asynchronous"] = "synchronous",
    every: int = 50,
    fragments: int = 1,
    overlap: int = 0,
    rate: float = 0.7,
    momentum: float = 0.9,
) -> Plan:
    """Plan `diloco`: many local steps, then one outer step with momentum."""

def Gossip(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    mode: Literal["synchronous", "asynchronous"] = "synchronous",
    graph: Literal["ring", "exponential", "complete"] = "ring",
) -> Plan:
    """Plan `gossip`: every worker mixes with its neighbours on a graph; there is no centre."""

def Sandblaster(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    memory: int = 10,
) -> Plan:
    """Plan `sandblaster`: L-BFGS, synchronous: a coordinator commands shards and workers."""

def Layers(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    micro_batches: int = 1,
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "time",
    recompute: str = "none",
    memory: int = 0,
    on: str = "",
) -> Plan:
    """Plan `layers`: the model cut by depth, one micro-batch after the other."""

def Gpipe(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    micro_batches: int = 4,
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "time",
    recompute: str = "none",
    memory: int = 0,
) -> Plan:
    """Plan `gpipe`: a pipeline: all forwards, all backwards, then the update."""

def OneFOneB(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    micro_batches: int = 4,
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "time",
    recompute: str = "none",
    memory: int = 0,
) -> Plan:
    """Plan `one_f_one_b`: a pipeline: forwards and backwards alternate, then the update."""

def ZeroBubble(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    micro_batches: int = 4,
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "time",
    recompute: str = "none",
    memory: int = 0,
) -> Plan:
    """Plan `zero_bubble`: a pipeline: backward in two halves, of which the second fills gaps."""

def Interleaved(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    micro_batches: int = 4,
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "time",
    recompute: str = "none",
    memory: int = 0,
    each: int = 2,
) -> Plan:
    """Plan `interleaved`: a pipeline: 1F1B with several stages at every worker."""

def Pipedream(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    micro_batches: int = 1,
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "operations",
    recompute: str = "none",
    memory: int = 0,
    mode: Literal["stash", "two_buffers"] = "stash",
) -> Plan:
    """Plan `pipedream`: an asynchronous pipeline: never flushed, with stashed weights."""

def Spectrain(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "operations",
    memory: int = 0,
) -> Plan:
    """Plan `spectrain`: an asynchronous pipeline: never flushed, with predicted weights."""

def Mesh(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    micro_batches: int = 4,
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "time",
    recompute: str = "none",
    memory: int = 0,
    data: int = 1,
    layers: int = 0,
    inside: int = 1,
    schedule: Literal["one_f_one_b", "gpipe"] = "one_f_one_b",
    ways: str = "",
) -> Plan:
    """Plan `mesh`: replicas of a pipeline whose stages are split inside: data x layers x inside."""

def Distbelief(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    micro_batches: int = 4,
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "time",
    recompute: str = "none",
    memory: int = 0,
    data: int = 1,
    layers: int = 0,
    inside: int = 1,
    schedule: Literal["one_f_one_b", "gpipe"] = "one_f_one_b",
    ways: str = "",
    mode: Literal["asynchronous", "synchronous"] = "asynchronous",
) -> Plan:
    """Plan `distbelief`: replicas of split pipelines, with shards of a parameter server between them."""

def Table(  # noqa: N802
    *,
    threads: int = 1,
    file: str = "",
    cuts: str = "",
    balance: Literal["time", "memory", "operations"] = "time",
    recompute: str = "none",
    memory: int = 0,
) -> Plan:
    """Plan `table`: a pipeline by a table of your own."""

def Tensor(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    data: int = 1,
    memory: int = 0,
) -> Plan:
    """Plan `tensor`: layers split in pairs: by what the first makes and the second takes."""

def Redundant(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    data: int = 1,
    memory: int = 0,
    small: int = 16384,
) -> Plan:
    """Plan `redundant`: borders of images and small layers computed again, instead of sent."""

def PerLayer(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    data: int = 1,
    memory: int = 0,
    ways: str = "",
) -> Plan:
    """Plan `per_layer`: each layer split in the way that your table says."""

def Zero(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    data: int = 1,
    memory: int = 0,
    stage: int = 3,
) -> Plan:
    """Plan `zero`: replicas whose optimizer state, gradients and parameters lie in shares."""

def Experts(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    data: int = 1,
    memory: int = 0,
) -> Plan:
    """Plan `experts`: experts of a mixture divided among workers, everything else by samples."""

def Cannon(  # noqa: N802
    *,
    workers: int = 4,
    threads: int = 1,
    data: int = 1,
    memory: int = 0,
) -> Plan:
    """Plan `cannon`: linear layers as products of blocks on a square grid of workers."""

def OneWeirdTrick(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    data: int = 1,
    memory: int = 0,
) -> Plan:
    """Plan `one_weird_trick`: convolutions split by samples, dense layers by their outputs."""

def Ampnet(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
    micro_batches: int = 1,
    active: int = 4,
    every: int = 1,
    on: str = "",
) -> Plan:
    """Plan `ampnet`: operators that compute whenever a message is there, for many chunks at a time."""

def Ceiling(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
) -> Plan:
    """Plan `ceiling`: workers that exchange nothing: the speed no plan can beat."""

def Ddp(  # noqa: N802
    *,
    workers: int = 2,
    threads: int = 1,
) -> Plan:
    """Plan `ddp`: PyTorch's DistributedDataParallel over gloo."""
