"""What the planner knows of a job besides its cost: sizes, codecs, and how a plan divides the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.algorithms.codecs.sizes import estimate
from paceline.planning.planner.divisions import ModelDivision
from paceline.plans.methods.prediction import Coding
from paceline.plans.plan import Plan


@dataclass(frozen=True)
class Facts:
    """What the planner knows of a job besides its cost."""

    batch: int  # samples of an update
    #: Bytes of the vector that synchronous workers add up: gradients, moving buffers, loss and weight.
    payload: int
    #: Bytes of the parameters as a server keeps them.
    served: int
    #: What is known of the codecs of this job's gradients, by their names in plans.
    codecs: Mapping[str, Coding] = field(default_factory=dict)
    #: How the plan divides the model, where it does and that is known.
    division: ModelDivision | None = None

    def samples(self, parts: int) -> int:
        """Return the samples of the largest of so many parts of a batch."""
        return math.ceil(self.batch / parts)


def coding_of(plan: Plan, facts: Facts) -> Coding:
    """Return what the codec does; of one that was not measured, its bytes as far as they follow from the model."""
    dense = facts.payload if plan.traits.synchronous else facts.served
    if plan.codec is None:
        return Coding(dense, 0.0, 0.0)
    return facts.codecs.get(str(plan.options["codec"])) or Coding(estimate(plan.codec, dense), 0.0, 0.0)


def answer_of(plan: Plan, facts: Facts) -> Coding:
    """Return what a server does to its answers; of a codec that was not measured, about its bytes."""
    if plan.pull is None:
        return Coding(facts.served, 0.0, 0.0)
    return facts.codecs.get(str(plan.options["pull"])) or Coding(estimate(plan.pull, facts.served), 0.0, 0.0)


def reads(plan: Plan) -> int:
    """Return how many messages are read for an update: one of each worker where they are gathered."""
    gathered = plan.codec is not None and not plan.codec.adds and plan.traits.synchronous
    return plan.workers if gathered else 1
