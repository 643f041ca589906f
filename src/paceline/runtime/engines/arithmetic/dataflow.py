"""All workers with operators in one process: who works next is decided by a clock, or by a recorded trace."""

from __future__ import annotations

from torch import Tensor

from paceline.algorithms.dataflow import Instances
from paceline.runtime.engines.arithmetic.common import Snapshots
from paceline.runtime.engines.setup import Setup
from paceline.training.data.source import Reader
from paceline.training.operators.worker import OperatorWorker


class DataflowArithmetic:
    """The workers of a plan, each with its own operators."""

    def __init__(self, setup: Setup) -> None:
        assert setup.operators is not None
        self.setup, blueprint, instances = setup, setup.operators, Instances(setup.agenda)
        self.snapshots = Snapshots(setup, self.values)

        def worker(number: int) -> OperatorWorker:
            reader = Reader(setup.source, setup.order(), 0, lambda _: None)
            return OperatorWorker(number, setup.job, setup.fresh_module(), blueprint, instances, reader)

        self.workers = [worker(number) for number in range(setup.plan.workers)]

    def values(self) -> list[Tensor]:
        tensors: dict[str, Tensor] = {}
        for worker in self.workers:
            tensors |= worker.held.values()
        start = dict(self.setup.module.named_parameters()) | dict(self.setup.module.named_buffers())
        return [tensors.get(name, start[name]).detach().clone() for name in self.setup.names]
