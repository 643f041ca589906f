"""Coordinated: a coordinator commands every update, which may evaluate a batch several times (Sandblaster L-BFGS)."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.proof import prove
from paceline.algorithms.coordinators import PARAMETERS, Commands, Coordinator, Done, Dot, Evaluate
from paceline.plans.methods import IN_STEP, Division, Synchronous, Traits
from paceline.plans.methods.prediction import Estimate, NotPredicted, Prices
from paceline.plans.methods.program import (
    Change,
    Finish,
    Gather,
    Gradient,
    Keep,
    Product,
    Program,
    Recall,
    Sum,
    Worker,
)
from paceline.plans.methods.views import Commands as CommandList
from paceline.plans.methods.views import Summing


@dataclass(frozen=True)
class Coordinated(Synchronous):
    """Lets a coordinator command every update."""

    collective: Collective
    coordinator: Coordinator = field()  # or it would have the default of other methods, None

    traits = Traits(
        uses_optimizer=False,
        repeats=True,
        shares_parameters=True,
        checks_finite=False,  # a line search tries steps that are too long
        needs_train="evaluates a batch several times in one step",
        cannot_clip="its line search compares the loss with the gradient as it is",
        one_machine=f"its vectors lie in the memory of one machine; on several machines use {IN_STEP}",
    )

    def program(self, worker: Worker) -> Program:
        """Obey the coordinator: every worker runs it itself, and all get the same answers."""
        commands = self.coordinator.commands((yield Recall()))
        for update in worker.updates():
            yield from self._update(update, commands)

    def _update(self, update: int, commands: Commands) -> Program:
        # Replicas need the whole parameters only where they are evaluated; until then each worker changes its slice.
        evaluated = changed = False
        command = next(commands)
        while not isinstance(command, Done):
            if isinstance(command, Evaluate):
                if changed:
                    yield Gather(update)
                gradient = yield Gradient(update, version=update, again=evaluated)
                total = yield Sum(update, gradient)
                answer = yield Keep(total)
                evaluated, changed = True, False
            elif isinstance(command, Dot):
                answer = yield Product(update, command)
            else:
                answer = yield Change(command)
                changed = changed or command.target == PARAMETERS
            command = commands.send(answer)
        if changed:
            yield Gather(update)
        yield Finish(update, command.remembers)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers)

    def prove(self, workers: int) -> None:
        prove(self.collective, workers)

    def predict(self, prices: Prices) -> Estimate:
        raise NotPredicted("how often a line search evaluates a batch is not known before it does")

    def picture(self, workers: int) -> CommandList:
        return CommandList(self.coordinator)

    def claim(self, workers: int) -> Summing:
        return Summing(self.collective, self.coordinator)
