"""Dataflow: workers hold operators, which send each other values and gradients whenever they have computed one."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.dataflow.example import example_graph
from paceline.algorithms.dataflow.proof import explore
from paceline.algorithms.dataflow.worker import follow_messages
from paceline.errors import PlanError
from paceline.plans.methods import IN_STEP, Division, Method, Traits
from paceline.plans.methods.prediction import Estimate, NotPredicted, Prices
from paceline.plans.methods.views import Operators

ALONE = "each operator makes its own updates, so none knows the norm of the whole gradient; leave it out"


@dataclass(frozen=True)
class Dataflow(Method):
    """Runs the operators of a model by the messages between them, for many chunks at a time."""

    #: Chunks of a batch, each of which is an instance with a graph of its own.
    micro_batches: int = 1
    #: The most instances under way (max_active_keys).
    active: int = 4
    #: The fewest instances whose gradients make an update of an operator (min_update_frequency).
    every: int = 1
    #: The worker of each operator with parameters; empty where they are balanced.
    on: tuple[int, ...] = ()

    program = staticmethod(follow_messages)
    traits = Traits(
        holds="operators",
        devices="parts",
        cannot_clip=ALONE,
        cannot_skip=ALONE,
        cannot_scale="each operator makes its own updates, so none sees whether the whole gradient overflows",
        needs_train="calls the model's operators at several workers, and your loop has the whole model",
        no_checkpoints="its workers have messages under way, for which there is no common cut",
        one_machine=f"its operators exchange messages in the memory of one machine; on several use {IN_STEP}",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(self.micro_batches)

    def prove(self, workers: int) -> None:
        """Walk every order of arrivals in a small world."""
        if self.on and set(self.on) != set(range(workers)):
            raise PlanError(
                f"plan 'ampnet': on={'+'.join(map(str, self.on))} must name each of the workers 0 to {workers - 1}"
            )
        walk = explore(example_graph, min(workers, 2), 2, min(self.active, 2), min(self.every, 2), program=self.program)
        if walk.story is not None:
            raise PlanError(walk.story)

    def predict(self, prices: Prices) -> Estimate:
        raise NotPredicted("which operators a sample calls is known when it does")

    def picture(self, workers: int) -> Operators:
        return Operators(self.micro_batches, self.active, self.every, self.program)

    claim = picture
