"""A prediction: the seconds of an update, divided into terms, with an interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.errors import PacelineError
from paceline.plans.methods.prediction import Terms
from paceline.plans.plan import RECIPES, Plan, make


def named(plan: Plan | str, compute: str) -> str:
    """Return a plan's name in rankings, with the way of computing where it is not PyTorch's."""
    return f"{plan}{' + fused' if compute == 'fused' else ''}"


@dataclass(frozen=True)
class Prediction:
    """What a plan would do with a job."""

    plan: Plan
    #: "autograd" or "fused".
    compute: str
    #: card, calibrated or profiled.
    level: str
    #: Samples of an update.
    batch: int
    terms: Terms
    #: Half the 90% interval, as a logarithm.
    error: float
    #: Bytes that each worker sends in an update, on average.
    bytes: float
    #: Bytes of the largest worker's own tensors.
    memory: int
    #: Mean staleness of a gradient, in updates.
    staleness: float = 0.0
    #: Why it cannot be used; empty where it can.
    ruled_out: str = ""

    @property
    def name(self) -> str:
        return named(self.plan, self.compute)

    @property
    def seconds(self) -> float:
        """The seconds of an update."""
        return self.terms.whole

    @property
    def low(self) -> float:
        """The lower end of the 90% interval of `seconds`."""
        return self.seconds * math.exp(-self.error)

    @property
    def high(self) -> float:
        return self.seconds * math.exp(self.error)

    @property
    def samples_per_second(self) -> float:
        return self.batch / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """The prediction as JSON has it."""
        return {
            "plan": str(self.plan),
            "compute": self.compute,
            "workers": self.plan.workers,
            "level": self.level,
            "seconds": self.seconds,
            "interval": [self.low, self.high],
            "terms": asdict(self.terms),
            "samples_per_second": self.samples_per_second,
            "bytes": self.bytes,
            "memory": self.memory,
            "staleness": self.staleness,
            "ruled_out": self.ruled_out,
        }


# --- Candidates: every plan that Paceline can run for a job, with its numbers of workers and threads ------------------
# same    plans that learn as one process does: they compute the gradient of the same batch
# any     also asynchronous servers, whose gradients are some updates old, plans that average replicas, and codecs,
#         which leave something out of a gradient until later; how well these learn is for `compare` to say

#: Options of plans that are tried besides their defaults.
VARIANTS: dict[str, tuple[dict[str, object], ...]] = {
    "downpour": ({}, {"shards": 2}),
    "diloco": ({}, {"fragments": 4, "overlap": 2}),
    "easgd": ({}, {"mode": "asynchronous"}),
    "gossip": ({}, {"mode": "asynchronous"}),
    "gpipe": ({}, {"micro_batches": 2}),
    "one_f_one_b": ({}, {"micro_batches": 8}),
}
#: A measure, a user's own tables, another mathematics.
NOT_CHOSEN = ("ceiling", "table", "per_layer", "sandblaster", "parallel_sgd")
CODED = ("ring", "downpour", "diloco")  # plans that are tried with codecs
LEARNING = ("same", "any")


@dataclass(frozen=True)
class Candidate:
    """A plan to be predicted."""

    plan: Plan
    compute: str = "autograd"

    def __str__(self) -> str:
        return named(self.plan, self.compute)


def same_learning(plan: Plan) -> bool:
    """Whether every update is the gradient of the whole batch, from the newest parameters."""
    return plan.codec is None and plan.traits.whole_batch and (plan.traits.exchanges or plan.workers == 1)


def candidates(
    workers: Sequence[int],
    cores: int,
    learning: str = "same",
    fused: bool = False,
    names: Sequence[str] = (),
    codecs: Sequence[str] = (),
) -> Iterator[Candidate]:
    """Yield what can be chosen; `workers` are the numbers to try besides one process, `codecs` those besides dense."""
    for compute in ("autograd", "fused") if fused else ("autograd",):
        for threads in sorted({1, cores}):
            yield Candidate(make("sequential", threads=threads) if threads > 1 else make("sequential"), compute)
    for name in names or RECIPES:
        if name in NOT_CHOSEN or name == "sequential":
            continue
        for plan in _of_recipe(name, workers):
            if learning == "any" or same_learning(plan):
                yield Candidate(plan)
                if fused and plan.name == "ring":
                    yield Candidate(plan, "fused")
    if learning == "any":
        for name, codec, count in itertools.product(CODED, codecs, workers):
            plan = make(name, workers=count, codec=codec)
            yield Candidate(plan)
            if name == "downpour" and plan.codec is not None and plan.codec.feedback:
                yield Candidate(make(name, workers=count, codec=codec, pull=codec))


def _of_recipe(name: str, workers: Sequence[int]) -> Iterator[Plan]:
    """Yield a named plan with every number of workers that it can have."""
    for options in VARIANTS.get(name, ({},)):
        for count in workers:
            try:
                plan = make(name, workers=count, **options)  # type: ignore[arg-type]
                if plan.traits.sums_gradients:
                    plan.method.prove(count)
            except (PacelineError, ValueError, AssertionError):
                continue  # this number of workers cannot be divided so
            yield plan


def numbers_of_workers(cores: int, most: int | None = None) -> list[int]:
    """Return the numbers of workers to try: up to 4, then doublings, up to as many as there are cores."""
    top = max(2, cores) if most is None else most
    return [
        count for count in sorted({2, 3, 4, top, *(2**power for power in range(1, 20))}) if 2 <= count <= max(top, 2)
    ]
