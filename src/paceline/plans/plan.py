"""A plan says how a job is trained: it is a method with a number of workers; well-known plans have names.

`Plan.parse("downpour:workers=4,shards=2")` and `Downpour(workers=4, shards=2)` are the same.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.cluster.shares import Membership
from paceline.algorithms.codecs import Codec
from paceline.algorithms.codecs.catalogue import DENSE
from paceline.errors import PlanError, plain, suggest
from paceline.plans.catalogue import DATA_PARALLEL, PEERS, PIPELINES, SPLIT
from paceline.plans.methods import Division, Method, Server, Synchronous, Traits
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.recipe import (
    ALIASES,
    MEANINGS,
    NEAREST,
    Option,
    Recipe,
    canonical,
    codec_of,
    pull_of,
    refuse_option,
)
from paceline.text_table import TextTable

RECIPES: dict[str, Recipe] = {**DATA_PARALLEL, **PIPELINES, **SPLIT, **PEERS}


@dataclass(frozen=True)
class Plan:
    """A method with a number of workers, and the options that it was made with."""

    name: str
    method: Method
    workers: int = 1
    #: Chunks of a batch that one worker computes one after another.
    chunks: int = 1
    #: Compute threads of each worker.
    threads: int = 1
    #: The codec of what leaves a worker, gradients or steps of DiLoCo; None: they travel as they are.
    codec: Codec | None = None
    #: The codec of what a server answers; None: the newest parameters as they are.
    pull: Codec | None = None
    #: Relative sizes of a batch's chunks, where they differ.
    sizes: tuple[int, ...] = ()
    #: Chunks of a batch that are added up in the order of one tree, on any number of workers; 0 where they are not.
    canonical: int = 0
    #: Whether chunks move from worker to worker by the speeds that are measured while they train.
    measured: bool = False
    #: The options as the user gave them.
    options: dict[str, Option] = field(default_factory=dict)

    @property
    def traits(self) -> Traits:
        return self.method.traits

    @property
    def division(self) -> Division:
        return self.method.division(self.workers, self.chunks)

    @property
    def parts(self) -> int:
        """The chunks that a batch is cut into."""
        return self.division.parts

    def membership(self) -> Membership:
        """Return who computes which parts of a batch, while all workers are there."""
        return Membership(self.workers, program_of(self).collective if self.canonical else None)

    @property
    def replayable(self) -> bool:
        return not self.traits.not_replayable

    @property
    def results(self) -> int:
        """The number of workers whose replicas make the trained model."""
        return self.division.results

    @property
    def shards(self) -> int:
        """Parts of the parameters that are updated under one lock each."""
        return self.method.server.shards if self.method.server is not None else 1

    @property
    def fragments(self) -> int:
        """Parts of the parameters that replicas exchange one after another."""
        return self.method.fragments

    def check_fragments(self, parameters: int) -> None:
        """Raise PlanError if there are more fragments than parameters of the model."""
        if self.fragments > parameters:
            raise PlanError(
                f"plan {self}: fragments={self.fragments}, but the model has {parameters} parameters that are trained, "
                f"and a fragment is at least one of them; give at most fragments={parameters}"
            )

    def fitted(self, shards: int) -> Plan:
        """Return the same plan with this number of shards, since each has at least one parameter."""
        if shards == self.shards:
            return self
        return replace(self, method=replace(self.method, shards=shards))  # type: ignore[type-var]

    def agenda(
        self, samples: int, batch_size: int, epochs: int = 1, accumulate: int = 1, limit: int | None = None
    ) -> Agenda:
        """Return how this plan divides the training."""
        by = self.division
        return Agenda(
            samples,
            batch_size,
            epochs,
            accumulate,
            by.parts,
            limit,
            by.block,
            by.shares,
            by.data_parts,
            self.sizes,
            canonical=bool(self.canonical),
        )

    def cut_at(self, names: Sequence[str]) -> Plan:
        """Return the same pipeline with the layers where the model was cut, so that it is cut there again."""
        cuts, method = "+".join(names), self.method
        if method.cuts in (None, cuts):
            return self
        method = replace(method, cuts=cuts)  # type: ignore[type-var]
        return replace(self, method=method, options={**self.options, "cuts": cuts})

    @staticmethod
    def parse(text: str | Plan, workers: int | None = None) -> Plan:
        """Make a plan from its name and options; `workers` is used if the text does not say it."""
        if isinstance(text, Plan):
            return text if workers is None or "workers" in text.options else make_again(text, workers)
        if not isinstance(text, str):
            raise PlanError(f"plan={text!r:.60} is neither a plan's name, such as 'ring:workers=2', nor a Plan")
        name_or_alias, _, tail = text.strip().partition(":")
        name, implied = canonical(name_or_alias)
        options = _options(name, implied) | _options(name, tail)
        if workers is not None and "workers" in _recipe(name).options:
            options.setdefault("workers", workers)
        return make(name, **options)

    @staticmethod
    def recorded(plan: str, table: str = "") -> Plan:
        """Make the plan of a recorded run, with the user's own table as it was then."""
        name, _, tail = plan.partition(":")
        return _made(name, _options(name, tail), table)

    @property
    def own_table(self) -> str:
        """The text of a user-defined table, which a run keeps besides the plan's name and options."""
        return self.method.own_table

    def __repr__(self) -> str:
        return f"Plan({str(self)!r})"

    def _repr_html_(self) -> str:
        recipe = _recipe(self.name)
        values = {key: self.options.get(key, kind.default) for key, kind in recipe.options.items()}
        rows = ((key, "-" if value in (None, "") else str(value), MEANINGS[key]) for key, value in values.items())
        return TextTable(f"Plan {self}", ("option", "value", ""), tuple(rows)).html([recipe.about])

    def __str__(self) -> str:
        tail = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{tail}" if tail else self.name


def server_of(plan: Plan) -> Server:
    """Return the server of a plan that has one."""
    assert plan.method.server is not None, plan
    return plan.method.server


def program_of(plan: Plan) -> Synchronous:
    """Return the method of a synchronous plan, as what has a program."""
    # A typed view for what runs, times, replays and explores programs; it is handed no other plan.
    assert isinstance(plan.method, Synchronous), plan
    return plan.method


def make(name: str, **options: Option) -> Plan:
    """Make the plan called `name`; unknown options and impossible values raise `PlanError`."""
    return _made(name, options)


def _made(name: str, stated: Mapping[str, Option], saved_table: str = "") -> Plan:
    """Check the options of a plan and make it."""
    recipe = _recipe(name)
    stated = {key: plain(value) for key, value in stated.items()}
    for key, value in stated.items():
        if key not in recipe.options:
            if key == "codec":
                raise refuse_option(name, (each for each, other in RECIPES.items() if "codec" in other.options))
            raise PlanError(f"plan {name!r} has no option {key!r}; {suggest(key, recipe.options)}")
        if refusal := recipe.options[key].refusal(value):
            raise PlanError(f"plan {name!r}: {key}={value!r} {refusal}")
    chosen: dict[str, Any] = {key: kind.default for key, kind in recipe.options.items()} | dict(stated)
    sizes = sizes_of(name, chosen.get("sizes", ""))
    chosen = count_chunks(name, sizes, chosen, stated)
    method = recipe.method(**_wanted(recipe, {**chosen, "saved_table": saved_table}))
    workers = method.count(name, chosen, "workers" in stated)
    codec = codec_of(name, method, chosen.get("codec", DENSE))
    pull = pull_of(name, codec, chosen.get("pull", DENSE))
    chunks, threads, canonical = chosen.get("chunks", 1), chosen["threads"], chosen.get("canonical", 0)
    measured = chosen.get("sizes") == MEASURED
    refuse_canonical(name, stated)
    if canonical:
        # Sizes are then those of the workers' shares, which do not change what a chunk is.
        method, chunks, sizes = method.canonical(canonical, sizes), canonical if "chunks" in chosen else chunks, ()
    return Plan(name, method, workers, chunks, threads, codec, pull, sizes, canonical, measured, options=dict(stated))


def _wanted(recipe: Recipe, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a recipe's function names, and the fields of `Pipeline` if it takes any keyword."""
    parameters = inspect.signature(recipe.method).parameters.values()
    arguments = {p.name: chosen[p.name] for p in parameters if p.kind is not p.VAR_KEYWORD and p.name in chosen}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        fields = inspect.signature(Pipeline).parameters
        arguments |= {key: value for key, value in chosen.items() if key in fields}
    return arguments


def make_again(plan: Plan, workers: int) -> Plan:
    """Return the same plan with another number of workers, if it has that option."""
    if "workers" not in _recipe(plan.name).options:
        return plan
    return make(plan.name, **{**plan.options, "workers": workers})


def recipe_of(name: str) -> tuple[str, Recipe]:
    """Return a plan's own name and its recipe, by any of its names."""
    plan_name, _ = canonical(name)
    return plan_name, _recipe(plan_name)


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        if name in NEAREST:
            raise PlanError(f"there is no plan {name!r}: {NEAREST[name]}")
        if "," in name:
            raise PlanError(f"{name!r} is not one plan; give one, or compare several with `paceline compare`")
        hint = f"for a table of your own in {name} write table:file={name}; " if "." in name else ""
        raise PlanError(f"there is no plan {name!r}; {hint}{_suggested(name)}")
    return RECIPES[name]


def _suggested(name: str) -> str:
    near = difflib.get_close_matches(name, [*RECIPES, *ALIASES], n=1)
    did_you_mean = f"did you mean {near[0]!r}? " if near else ""
    return f"{did_you_mean}`paceline plans` lists all plans"


def _options(name: str, tail: str) -> dict[str, Option]:
    """Parse the options of a plan's text."""
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


# Chunks of unequal sizes: a batch is divided among workers of unequal speed as `sizes=3+1` says.

MEASURED = "measured"  # sizes that follow the speeds of workers while they train


def sizes_of(plan: str, text: str) -> tuple[int, ...]:
    """Return the relative sizes of chunks that a plan's option states; none if they are equal."""
    words = text.split("+") if text and text != MEASURED else []
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise PlanError(
            f"plan {plan!r}: sizes={text} are not whole numbers of at least 1, joined by +; write sizes=3+1 for a "
            "first worker that takes three quarters of every batch"
        )
    return tuple(map(int, words))


def count_chunks(
    plan: str, sizes: tuple[int, ...], chosen: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options with as many workers, or chunks of one process, as there are sizes."""
    if not sizes:
        return dict(chosen)
    counted = "workers" if "workers" in chosen else "chunks"
    if options.get(counted, len(sizes)) != len(sizes):
        raise PlanError(
            f"plan {plan!r}: sizes={chosen['sizes']} states {len(sizes)} sizes, and {counted}={options[counted]}; "
            "give a "
            "size for each"
        )
    return {**chosen, counted: len(sizes)}


def refuse_canonical(plan: str, options: Mapping[str, Any]) -> None:
    """Raise `PlanError` for options that do not go with a canonical sum."""
    if not options.get("canonical") and options.get("sizes") == MEASURED:
        raise PlanError(
            f"plan {plan!r}: sizes={MEASURED} moves chunks from worker to worker during the training, which changes "
            "its bits unless they are summed in one order; give canonical= too, as in canonical=8"
        )
    if not options.get("canonical"):
        return
    reasons = {
        "codec": "a codec owes what it leaves out to the next gradient of the same worker, so the bits would depend on "
        "which worker computes a chunk",
        "chunks": "canonical= says how many chunks there are",
    }
    if plan == "sequential":
        reasons["sizes"] = "its chunks have equal sizes; under a plan with workers sizes= divides them among these"
    for option, why in reasons.items():
        if options.get(option, "dense") != "dense":
            raise PlanError(
                f"plan {plan!r}: {option}={options[option]} does not go with canonical=: {why}; leave it out"
            )


def sizes_by(speeds: Sequence[float]) -> str:
    """Return the sizes that divide a batch by these speeds, as a plan's option; empty where a speed is not known.

    They are within an eighth of the slowest worker's chunk, since a speed that was measured is no more exact.
    """
    if not all(math.isfinite(speed) and speed > 0 for speed in speeds):
        return ""
    ratios = [speed / min(speeds) for speed in speeds]
    for unit in range(1, 5):
        sizes = [round(unit * share) for share in ratios]
        if max(abs(size / unit - share) for size, share in zip(sizes, ratios, strict=True)) <= 1 / 8:
            break
    return "+".join(map(str, sizes))


# Which plans several machines do not run, why, and what to use instead.


def check_method(plan: Plan) -> None:
    """Raise PlanError if a cluster cannot run the plan."""
    if why := plan.traits.one_machine:
        raise PlanError(f"plan {plan.name} does not run on a cluster: {why}")
