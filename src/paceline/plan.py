"""Plan: how a job is trained, a choice on each axis; the named plans are recipes.

    axis      question                                      members so far
    split     what does each worker hold?                   the whole model (data parallelism)
    meeting   where do workers meet?                        Ring, Shards, None (nowhere)
    gate      who may go on?                                Asynchronous; None: the meeting itself keeps step
    rule      how does an arrival change the parameters?    Plain

`Plan.parse("downpour:workers=4,shards=2")` and `Downpour(workers=4, shards=2)` are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core.gates import Gate
from paceline.core.gates.asynchronous import Asynchronous
from paceline.core.meetings import Collective, Shards
from paceline.core.meetings.ring import Ring
from paceline.core.rules import Rule
from paceline.core.rules.plain import Plain
from paceline.errors import PlanError, suggest

Option = int


@dataclass(frozen=True)
class Plan:
    name: str
    workers: int = 1
    chunks: int = 1  # chunks of a batch that one worker computes one after the other
    threads: int = 1  # compute threads of each worker
    meeting: Collective | Shards | None = None
    gate: Gate | None = None
    rule: Rule = field(default_factory=Plain)
    native: bool = False  # PyTorch's own DDP does the meeting
    options: dict[str, Option] = field(default_factory=dict)  # as the user gave them

    @property
    def parts(self) -> int:
        """Into how many chunks a batch is split."""
        return self.workers if self.synchronous or self.native else self.chunks

    @property
    def synchronous(self) -> bool:
        return self.meeting is not None and not isinstance(self.meeting, Shards)

    @property
    def shards(self) -> int:
        return self.meeting.count if isinstance(self.meeting, Shards) else 1

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

    def __str__(self) -> str:
        tail = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{tail}" if tail else self.name


@dataclass(frozen=True)
class Recipe:
    about: str
    build: Callable[..., Plan]
    options: dict[str, Option]  # every option with its default


def _sequential(chunks: int, threads: int) -> Plan:
    return Plan("sequential", chunks=chunks, threads=threads)


def _ring(workers: int, threads: int) -> Plan:
    return Plan("ring", workers=workers, threads=threads, meeting=Ring())


def _downpour(workers: int, shards: int, threads: int) -> Plan:
    return Plan("downpour", workers=workers, threads=threads, meeting=Shards(shards), gate=Asynchronous())


def _ceiling(workers: int, threads: int) -> Plan:
    return Plan("ceiling", workers=workers, threads=threads)


def _ddp(workers: int, threads: int) -> Plan:
    return Plan("ddp", workers=workers, threads=threads, native=True)


RECIPES: dict[str, Recipe] = {
    "sequential": Recipe("one process; chunks=N is the oracle of N workers", _sequential, {"chunks": 1, "threads": 1}),
    "ring": Recipe("synchronous all-reduce around a ring", _ring, {"workers": 2, "threads": 1}),
    "downpour": Recipe("asynchronous parameter server", _downpour, {"workers": 2, "shards": 1, "threads": 1}),
    "ceiling": Recipe("workers that never meet: the speed nobody can beat", _ceiling, {"workers": 2, "threads": 1}),
    "ddp": Recipe("PyTorch's DistributedDataParallel over gloo", _ddp, {"workers": 2, "threads": 1}),
}


def make(name: str, **given: Option) -> Plan:
    """The plan called `name`; unknown options and impossible values are refused."""
    recipe = _recipe(name)
    for key, value in given.items():
        if key not in recipe.options:
            raise PlanError(f"plan {name!r} has no option {key!r}; {suggest(key, recipe.options)}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise PlanError(f"plan {name!r}: {key}={value!r} is not a whole number of at least 1")
    return replace(recipe.build(**{**recipe.options, **given}), options=dict(given))


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
        raise PlanError(f"there is no plan {name!r}; {suggest(name, RECIPES)}")
    return RECIPES[name]


def _options(name: str, tail: str) -> dict[str, Option]:
    options: dict[str, Option] = {}
    for word in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = word.partition("=")
        if not equals or not value.strip().lstrip("-").isdigit():
            raise PlanError(f"plan {name!r}: {word!r} is not an option; write key=number, as in {name}:workers=4")
        options[key.strip()] = int(value)
    return options
