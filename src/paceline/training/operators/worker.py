"""The numbers of a worker's program (`algorithms.dataflow.worker`): its operators and the instances under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.dataflow import FORWARD, GRADIENT, NO_OPERATOR, VALUE, Graph, Instances, Message, Work
from paceline.algorithms.dataflow.holder import OperatorUpdate, Outcome
from paceline.errors import NotFinite
from paceline.training.data.source import Reader
from paceline.training.gradients.loss import loss_function
from paceline.training.jobs.job import Job
from paceline.training.operators.planning import Gradients, HeldOperators, OperatorBlueprint
from paceline.training.operators.recording import Instance, Recorder


class Applied(NamedTuple):
    """An update of an operator that was made."""

    operator: int
    #: The last batch that it is made of.
    update: int
    #: The oldest version of the parameters that a gradient in it began with, and the one that was made.
    base: int
    version: int
    finite: bool


class Computed(NamedTuple):
    """The numbers of a piece of work."""

    sends: list[tuple[Message, Gradients]]
    #: The loss of the instance, where this work has computed it.
    loss: float | None
    #: What that weighs in a mean.
    weight: float


class OperatorWorker:
    """One worker's operators and instances."""

    def __init__(
        self,
        number: int,
        job: Job,
        module: nn.Module,
        blueprint: OperatorBlueprint,
        instances: Instances,
        reader: Reader,
    ) -> None:
        self.number, self.job, self.instances, self.reader = number, job, instances, reader
        self.held = HeldOperators(job, module, blueprint.held_by(number), blueprint.moving)
        self.recorder = Recorder(module, loss_function(job), blueprint.holders, blueprint.returns)
        self.under_way: dict[int, Instance] = {}
        self.chunks: dict[int, Chunk] = {}
        self.weights: dict[int, float] = {}
        #: By (instance, call): its tensors, and what its users have sent back.
        self.values: dict[tuple[int, int], Sequence[Tensor | None]] = {}
        self.arrived: dict[tuple[int, int], dict[int, Gradients]] = {}
        self.versions = dict.fromkeys(blueprint.held_by(number), 0)
        #: By (instance, operator): the version that its first value was computed with.
        self.read: dict[tuple[int, int], int] = {}
        #: By operator: the weights of the instances in its next update, and the oldest version that they read.
        self.counted: dict[int, tuple[float, int]] = {}

    def record(self, instance: int) -> Graph:
        """Read an instance's samples and record what it calls; return its graph."""
        if instance not in self.under_way:
            chunk = self.instances.chunk(instance)
            batch = self.reader.batch(chunk)
            weigh = self.job.loss_denominator
            self.weights[instance] = float(chunk.samples if weigh is None else weigh(batch))
            self.under_way[instance] = self.recorder.record(self.held.replica.prepared(chunk, batch))
            self.chunks[instance] = chunk
        return self.under_way[instance].graph

    def receive(self, message: Message, tensors: Gradients) -> None:
        """Take the numbers of a value or a gradient that another worker has sent."""
        if message.what == VALUE:
            self.values[message.instance, message.call] = tensors
        elif message.what == GRADIENT:
            self.arrived.setdefault((message.instance, message.call), {})[message.user] = tensors

    def compute(self, work: Work, outcome: Outcome) -> Computed:
        """Do a piece of work, which comes to this outcome."""
        loss, weight = None, self.weights[work.instance]
        if work.what == FORWARD:
            loss = self._forward(work)
            sends = [(each, list(self.values[each.instance, each.call])) for each in outcome.sends]
        else:
            returned = self._backward(work)
            sends = [(each, returned[each.call]) for each in outcome.sends]
        if outcome.completes != NO_OPERATOR:
            self._complete(work.instance, outcome.completes)
        return Computed(sends, loss, weight)

    def _forward(self, work: Work) -> float | None:
        _, instance, call = work
        recorded, chunk = self.under_way[instance].calls[call], self.chunks[instance]
        if isinstance(recorded.what, int) and recorded.what in self.versions:
            self.read.setdefault((instance, recorded.what), self.versions[recorded.what])

        def taken(number: int, place: int) -> Tensor:
            tensor = self.values[instance, number][place]
            assert tensor is not None
            return tensor

        outputs = self.held.forward(instance, call, recorded, (chunk.update, chunk.number), taken)
        self.values[instance, call] = outputs
        if call != len(self.under_way[instance].calls) - 1:
            return None
        loss = float(outputs[0])
        if self.job.on_nan == "stop" and not math.isfinite(loss):
            raise NotFinite(loss, chunk.update, self.reader.order.indices(chunk).tolist())
        return loss

    def _backward(self, work: Work) -> dict[int, Gradients]:
        """Compute the gradients of a call; return what each call gets back whose values it took."""
        _, instance, call = work
        graph = self.under_way[instance].graph
        if users := graph.users[call]:
            by_user = self.arrived.pop((instance, call), {})
            back = [by_user[user] for user in users]
        else:
            (loss,) = self.values[instance, call]
            assert loss is not None
            back = [[torch.full_like(loss, self.weights[instance])]]
        input_gradients = self.held.backward(instance, call, graph.calls[call].operator, back)
        returned = {}
        for number in graph.calls[call].takes:
            places = input_gradients[number]
            returned[number] = [places.get(place) for place in range(max(places, default=-1) + 1)]
            if graph.calls[number].holder == self.number:
                self.arrived.setdefault((instance, number), {})[call] = returned[number]
        return returned

    def _complete(self, instance: int, operator: int) -> None:
        self.held.complete(instance, operator)
        read = self.read.pop((instance, operator))
        weight, base = self.counted.get(operator, (0.0, read))
        self.counted[operator] = weight + self.weights[instance], min(base, read)

    def update(self, step: OperatorUpdate, update: int) -> Applied:
        """Make an update of an operator; the last batch in it is that of this update."""
        weight, base = self.counted.pop(step.operator)
        finite = self.held.step(step.operator, weight)
        self.versions[step.operator] += 1
        return Applied(step.operator, update, base, self.versions[step.operator], finite)

    def forget(self, instance: int) -> None:
        for call in range(len(self.under_way.pop(instance).calls)):
            self.values.pop((instance, call), None)
        del self.chunks[instance], self.weights[instance]
