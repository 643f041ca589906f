"""Plan: how a job is trained, a choice on each axis; the named plans are recipes.

    axis       question                                     members so far
    split      what does each worker hold?                  the whole model (data parallelism); stages of it, by a
                                                            schedule
    meeting    where do workers meet?                       Ring, Tree, HalvingDoubling, Hierarchical, Central,
                                                            Neighbours; Shards; None: nowhere
    gate       who may go on?                               Asynchronous, StaleSynchronous, Backup; None: the meeting
                                                            does
    rule       how does an arrival change the parameters?   Plain, DcAsgd
    averaging  how do replicas that moved agree?            ModelAveraging, Easgd, Diloco, DPsgd; None: they do not move
    exchanging or with a centre?                            ElasticExchange, OuterExchange, MapReduce
    pairing    or with one other?                           AdPsgd
    programme  or does a coordinator command each update?   Lbfgs; None: the rule says it all
    schedule   in which order do stages work?               Layers, Gpipe, OneFOneB, Interleaved,
                                                            ZeroBubble, Pipedream, Spectrain; None: nobody holds a part
    codec      how is a gradient written on the wire?       Dense

`Plan.parse("downpour:workers=4,shards=2")` and `Downpour(workers=4, shards=2)` are the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core.agenda import Agenda
from paceline.core.codecs import Codec
from paceline.core.codecs.dense import Dense
from paceline.core.collectives import Collective, Shards
from paceline.core.collectives.central import Central
from paceline.core.collectives.halving_doubling import HalvingDoubling
from paceline.core.collectives.hierarchical import Hierarchical
from paceline.core.collectives.neighbours import GRAPHS, Neighbours
from paceline.core.collectives.ring import Ring
from paceline.core.collectives.tree import Tree
from paceline.core.coordinators import Coordinator
from paceline.core.coordinators.lbfgs import Lbfgs
from paceline.core.rules import Averaging, Exchanging, Rule
from paceline.core.rules.ad_psgd import AdPsgd
from paceline.core.rules.d_psgd import DPsgd
from paceline.core.rules.dc_asgd import PUBLISHED_LAMBDA, DcAsgd
from paceline.core.rules.diloco import Diloco, OuterExchange
from paceline.core.rules.easgd import Easgd, ElasticExchange
from paceline.core.rules.map_reduce import MapReduce
from paceline.core.rules.model_averaging import ModelAveraging
from paceline.core.rules.plain import Plain
from paceline.core.schedules import Schedule, Table, table_of
from paceline.core.schedules.own import Own
from paceline.core.server.gates import Gate
from paceline.core.server.gates.asynchronous import Asynchronous
from paceline.core.server.gates.backup import Backup
from paceline.core.server.gates.stale_synchronous import StaleSynchronous
from paceline.errors import PlanError, suggest
from paceline.plans.pipelines import PIPELINES
from paceline.plans.recipe import TEAM, THREADS, Kind, Option, Recipe


@dataclass(frozen=True)
class Plan:
    name: str
    workers: int = 1
    chunks: int = 1  # chunks of a batch that one worker computes one after the other
    threads: int = 1  # compute threads of each worker
    meeting: Collective | Shards | None = None
    gate: Gate | None = None
    rule: Rule = field(default_factory=Plain)
    averaging: Averaging | None = None
    exchanging: Exchanging | None = None
    pairing: AdPsgd | None = None
    coordinator: Coordinator | None = None
    schedule: Schedule | None = None  # workers hold stages of the model
    cuts: str = ""  # where stages begin, with + between them; "": where they are `balance`d
    balance: str = "time"
    memory: int = 0  # MiB that a worker may take; 0: no bound
    recompute: str = "none"  # which stages compute activations again instead of keeping them
    codec: Codec = field(default_factory=Dense)
    locked: bool = True  # whether a shard is changed by one worker at a time; else (Hogwild) a run has no order
    native: bool = False  # PyTorch's own DDP does the meeting
    options: dict[str, Option] = field(default_factory=dict)  # as the user gave them

    @property
    def parts(self) -> int:
        """Into how many chunks a batch is split."""
        return self.workers if self.synchronous or self.native else self.gathers or self.chunks

    @property
    def synchronous(self) -> bool:
        return self.meeting is not None and not isinstance(self.meeting, Shards)

    @property
    def steps_at_shards(self) -> bool:
        """Whether the user's optimizer works at the shards, each under its lock."""
        return isinstance(self.meeting, Shards) and self.locked and not (self.exchanging or self.pairing)

    @property
    def takes_sparse(self) -> bool:
        """Whether gradients may be sparse: nobody adds them up by a table, bends them, or exchanges dense replicas."""
        dense = self.synchronous or self.native or self.gathers or self.exchanging or self.pairing
        return isinstance(self.rule, Plain) and not dense

    @property
    def block(self) -> int:
        """Updates that a worker leases at once."""
        return self.exchanging.every if self.exchanging else 1

    @property
    def replayable(self) -> bool:
        return self.locked and not self.native

    def fitted(self, shards: int) -> Plan:
        """With as many shards as there are: each has at least one parameter."""
        if not isinstance(self.meeting, Shards):
            return self
        return replace(self, meeting=replace(self.meeting, count=shards))

    @property
    def agrees(self) -> bool:
        """Whether all workers hold the same after every update."""
        return self.native or (self.synchronous and self.averaging is None and self.coordinator is None)

    @property
    def results(self) -> int:
        """How many workers' replicas make the result: one, since they agree at the end; all, where they never do."""
        return self.workers if isinstance(self.meeting, Neighbours) else 1

    @property
    def shards(self) -> int:
        return self.meeting.count if isinstance(self.meeting, Shards) else 1

    @property
    def gathers(self) -> int:
        """Gradients, each of its share of a batch, that a shard makes an update of; 0 where each is one."""
        return self.meeting.gathers if isinstance(self.meeting, Shards) else 0

    @property
    def wire(self) -> Codec:
        """How what leaves a worker is written: a gradient by the codec, a replica that has moved as it is."""
        gradients_travel = self.meeting is not None and not (self.averaging or self.exchanging or self.pairing)
        return self.codec if gradients_travel else Dense()

    def agenda(
        self, samples: int, batch_size: int, epochs: int = 1, accumulate: int = 1, limit: int | None = None
    ) -> Agenda:
        """How this plan divides the training."""
        parts = self.exchanging.parts if self.exchanging else 0
        return Agenda(samples, batch_size, epochs, accumulate, self.parts, limit, self.block, self.gathers or 1, parts)

    @property
    def endless(self) -> bool:
        """Whether this is a pipeline that is never empty before the training is over."""
        return self.schedule is not None and self.schedule.span == 0

    def table(self, counts: Sequence[int]) -> Table:
        """What everybody does in as many updates, of so many micro-batches each."""
        assert self.schedule is not None
        if (size := self.stages * sum(counts)) > LARGEST:
            raise PlanError(
                f"the table of plan {self} would have {size:,} places, micro-batches times stages, and at most "
                f"{LARGEST:,} are walked; give fewer micro_batches or workers"
            )
        return table_of(self.schedule, self.workers, counts)

    @property
    def stages(self) -> int:
        """Of a pipeline."""
        return len(self.schedule.homes(self.workers)) if self.schedule is not None else 0

    @property
    def recomputing(self) -> tuple[int, ...]:
        """The stages that compute their activations again."""
        every = {"none": (), "all": tuple(range(self.stages))}
        return every[self.recompute] if self.recompute in every else tuple(map(int, self.recompute.split("+")))

    def cut_at(self, names: Sequence[str]) -> Plan:
        """With the places where it was cut, so that it is cut there again."""
        cuts = "+".join(names)
        return replace(self, cuts=cuts, options={**self.options, "cuts": cuts}) if cuts != self.cuts else self

    def meets_after(self, update: int, updates: int) -> bool:
        """Whether all meet after this update: always, but under an averaging rule now and then, and at the end."""
        if self.averaging is None:
            return True
        every = self.averaging.every
        return update + 1 == updates or bool(every and (update + 1) % every == 0)

    @staticmethod
    def parse(text: str | Plan, workers: int | None = None) -> Plan:
        """A plan from its name and options; `workers` fills in what the text leaves open."""
        if isinstance(text, Plan):
            return text if workers is None or "workers" in text.options else make_again(text, workers)
        name, _, tail = text.strip().partition(":")
        options = _options(name, tail)
        if workers is not None and "workers" in _recipe(name).options:
            options.setdefault("workers", workers)
        return make(name, **options)

    @staticmethod
    def recorded(plan: str, table: str = "") -> Plan:
        """Make the plan of a recorded run, with the user's own table as it was then."""
        name, _, tail = plan.partition(":")
        return _made(name, _options(name, tail), table)

    @property
    def kept(self) -> str:
        """What a run has to keep of it, besides its name and options."""
        return self.schedule.text if isinstance(self.schedule, Own) else ""

    def __str__(self) -> str:
        tail = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{tail}" if tail else self.name


LARGEST = 200_000  # places in a pipeline's table: half a minute of proving
FIELDS = ("workers", "chunks", "threads", "cuts", "balance", "recompute", "memory")  # other options are for the axes
SERVER = {**TEAM, "shards": Kind(1)}
MODES = Kind("synchronous", words=("synchronous", "asynchronous"))
ONE_LOCK: dict[str, Any] = {"meeting": Shards(1), "gate": Asynchronous()}


def _with_backups(workers: int, backups: int) -> dict[str, Any]:
    needed = max(1, workers - backups)
    return {"meeting": Shards(1, gathers=needed), "gate": Backup(needed)}


RECIPES: dict[str, Recipe] = {
    "sequential": Recipe(
        "one process; chunks=N is the oracle of N workers", dict, {"chunks": Kind(1), "threads": THREADS}
    ),
    "ring": Recipe("synchronous all-reduce around a ring", lambda: {"meeting": Ring()}, TEAM),
    "tree": Recipe("synchronous, up a tree and down again: short vectors", lambda: {"meeting": Tree()}, TEAM),
    "halving_doubling": Recipe(
        "synchronous, halves with far partners first", lambda: {"meeting": HalvingDoubling()}, TEAM
    ),
    "hierarchical": Recipe(
        "synchronous, within groups, then between them",
        lambda groups: {"meeting": Hierarchical(groups)},
        {**TEAM, "groups": Kind(2)},
    ),
    "central": Recipe("synchronous parameter server: one place adds up", lambda: {"meeting": Central()}, TEAM),
    "downpour": Recipe(
        "asynchronous parameter server", lambda shards: {"meeting": Shards(shards), "gate": Asynchronous()}, SERVER
    ),
    "ssp": Recipe(
        "asynchronous, nobody more than `bound` batches ahead",
        lambda shards, bound: {"meeting": Shards(shards), "gate": StaleSynchronous(bound)},
        {**SERVER, "bound": Kind(3, least=0)},
    ),
    "backup": Recipe(
        "synchronous, without the `backups` slowest workers",
        _with_backups,
        {**TEAM, "backups": Kind(1, least=0)},
    ),
    "dc_asgd": Recipe(
        "asynchronous, old gradients bent towards the newest parameters",
        lambda shards, mode, lam: {
            "meeting": Shards(shards),
            "gate": Asynchronous(),
            "rule": DcAsgd(PUBLISHED_LAMBDA[mode] if lam is None else lam, mode),
        },
        {**SERVER, "mode": Kind("constant", words=tuple(PUBLISHED_LAMBDA)), "lam": Kind(None, least=0)},
    ),
    "hogwild": Recipe(
        "asynchronous, everybody changes the same memory without locks",
        lambda: {"meeting": Shards(1), "gate": Asynchronous(), "locked": False},
        TEAM,
    ),
    "local_sgd": Recipe(
        "local steps, now and then the mean of all replicas",
        lambda every: {"meeting": Ring(), "averaging": ModelAveraging(every)},
        {**TEAM, "every": Kind(10)},
    ),
    "parallel_sgd": Recipe(
        "everyone alone, and the mean at the end",
        lambda mode, parts: (
            {"meeting": Ring(), "averaging": ModelAveraging(0)}
            if mode == "synchronous"
            else {**ONE_LOCK, "exchanging": MapReduce(parts)}
        ),
        {**TEAM, "mode": Kind("synchronous", words=("synchronous", "map_reduce")), "parts": Kind(8)},
    ),
    "easgd": Recipe(
        "local steps, replicas tied to a centre by springs",
        lambda mode, workers, every, spring: (
            {"meeting": Ring(), "averaging": Easgd(workers, every, spring)}
            if mode == "synchronous"
            else {**ONE_LOCK, "exchanging": ElasticExchange(workers, every, spring)}
        ),
        {**TEAM, "mode": MODES, "every": Kind(10), "spring": Kind(None, least=0)},
    ),
    "diloco": Recipe(
        "many local steps, then one outer step with momentum",
        lambda mode, workers, every, rate, momentum: (
            {"meeting": Ring(), "averaging": Diloco(every, rate, momentum)}
            if mode == "synchronous"
            else {**ONE_LOCK, "exchanging": OuterExchange(workers, every, rate, momentum)}
        ),
        {**TEAM, "mode": MODES, "every": Kind(50), "rate": Kind(0.7, least=0.0), "momentum": Kind(0.9, least=0.0)},
    ),
    "gossip": Recipe(
        "everyone mixes with its neighbours on a graph; no centre",
        lambda mode, graph: (
            {"meeting": Neighbours(graph), "averaging": DPsgd()}
            if mode == "synchronous"
            else {**ONE_LOCK, "pairing": AdPsgd(graph)}
        ),
        {**TEAM, "mode": MODES, "graph": Kind("ring", words=GRAPHS)},
    ),
    "sandblaster": Recipe(
        "L-BFGS, synchronous: a coordinator commands shards and workers",
        lambda memory: {"meeting": Ring(), "coordinator": Lbfgs(memory)},
        {**TEAM, "memory": Kind(10)},
    ),
    **PIPELINES,
    "ceiling": Recipe("workers that never meet: the speed nobody can beat", dict, TEAM),
    "ddp": Recipe("PyTorch's DistributedDataParallel over gloo", lambda: {"native": True}, TEAM),
}


def make(name: str, **given: Option) -> Plan:
    """The plan called `name`; unknown options and impossible values are refused."""
    return _made(name, given)


def _made(name: str, given: Mapping[str, Option], kept: str = "") -> Plan:
    recipe = _recipe(name)
    for key, value in given.items():
        if key not in recipe.options:
            raise PlanError(f"plan {name!r} has no option {key!r}; {suggest(key, recipe.options)}")
        if refusal := recipe.options[key].refusal(value):
            raise PlanError(f"plan {name!r}: {key}={value!r} {refusal}")
    chosen: dict[str, Any] = {"kept": kept, **{key: kind.default for key, kind in recipe.options.items()}, **given}
    own = {key: chosen[key] for key in FIELDS if key in chosen}
    wanted = inspect.signature(recipe.axes).parameters if recipe.axes is not dict else {}
    plan = Plan(name, **own, **recipe.axes(**{key: chosen[key] for key in wanted}), options=dict(given))
    if plan.schedule is not None:
        _check_stages(plan)
    return plan


def _check_stages(plan: Plan) -> None:
    """What is said of a pipeline's stages must be said of stages that it has."""
    cuts = plan.cuts.count("+") + 1 if plan.cuts else plan.stages - 1
    if cuts + 1 != plan.stages:
        raise PlanError(f"{cuts} cuts ({plan.cuts}) make {cuts + 1} stages, and the plan has {plan.stages}")
    words = [] if plan.recompute in ("none", "all") else plan.recompute.split("+")
    if not all(word.isdecimal() and int(word) < plan.stages for word in words):
        raise PlanError(
            f"plan {plan.name!r}: recompute={plan.recompute!r} is neither 'none' nor 'all' nor stages from 0 to "
            f"{plan.stages - 1}, as in recompute=0+1"
        )


def make_again(plan: Plan, workers: int) -> Plan:
    """The same plan with another number of workers, where it has workers at all."""
    if "workers" not in _recipe(plan.name).options:
        return plan
    return make(plan.name, **{**plan.options, "workers": workers})


def plan_class(name: str) -> Callable[..., Plan] | None:
    """`Downpour` for "downpour", `DcAsgd` for "dc_asgd"; None where no plan is called so."""
    for plan in RECIPES:
        if "".join(part.capitalize() for part in plan.split("_")) == name:

            def build(_plan: str = plan, /, **options: Any) -> Plan:
                return make(_plan, **options)

            build.__name__, build.__doc__ = name, RECIPES[plan].about
            return build
    return None


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        own = f"for a table of your own in {name} write table:file={name}; " if "." in name else ""
        raise PlanError(f"there is no plan {name!r}; {own}{suggest(name, RECIPES)}")
    return RECIPES[name]


def _options(name: str, tail: str) -> dict[str, Option]:
    options: dict[str, Option] = {}
    kinds = RECIPES[name].options if name in RECIPES else {}
    for word in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not value:
            raise PlanError(f"plan {name!r}: {word!r} is not an option; write key=value, as in {name}:workers=4")
        options[key] = value if key in kinds and kinds[key].free else _read(value)
    return options


def _read(value: str) -> Option:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
