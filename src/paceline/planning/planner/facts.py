"""What the planner knows of a job besides its cost: sizes, codecs, and how a plan divides the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.algorithms.codecs.catalogue import estimate
from paceline.planning.planner.costs import LayerSeconds
from paceline.plans.methods.prediction import Coding
from paceline.plans.plan import Plan

# How a plan divides a model among workers, as the engine would: what stages or parts of layers compute and send.
# It is worked out from what workers are given to run (`api.dividing`), so its bytes are exact.


@dataclass(frozen=True)
class ModelDivision:
    """What one plan makes of one model; in an update, on average over workers."""

    #: Bytes that a worker sends.
    bytes: float
    #: Bytes of the tensors of the largest worker; 0 where they were not counted.
    memory: int = 0
    #: Messages that a worker sends, where it has parts of layers.
    messages: int = 0
    #: Pieces between two movements, each of which has its own Python.
    segments: int = 0
    #: The share of the parameters' bytes that a worker holds; 0 under a pipeline.
    held: float = 0.0
    #: The share of each layer that a worker computes.
    computed: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean_share(self) -> float:
        """The share of the layers that a worker computes, each counting alike."""
        return sum(self.computed.values()) / len(self.computed) if self.computed else 1.0

    def share(self, module: str) -> float:
        """Return the share of a module that a worker computes: its own, or that of the layer it belongs to."""
        while module and module not in self.computed:
            module = module.rpartition(".")[0]
        return self.computed.get(module, 1.0)


def layers_share(layers: Mapping[str, LayerSeconds], division: ModelDivision) -> float:
    """Return the share of a model's seconds that a worker computes; what has no share is whole."""
    rows = [(each.forward + each.backward, division.share(name)) for name, each in layers.items()]
    return sum(work * share for work, share in rows) / (sum(work for work, _ in rows) or 1.0)


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
