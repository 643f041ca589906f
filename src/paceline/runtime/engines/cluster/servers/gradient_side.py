"""A worker that pushes gradients: the memory that its module computes with, and what it pushes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.plans.methods import Server
from paceline.runtime.engines.cluster.servers.gathered import SumVector
from paceline.runtime.engines.cluster.servers.shard_state import CodedVector, GradientVector, Vector, vector_pool
from paceline.runtime.engines.workers.methods.runner import PlanRunner
from paceline.runtime.links.tcp.connection import Buffer
from paceline.training.gradients.encoder import HEAD, GradientEncoder, PulledReader, taken_by
from paceline.training.gradients.message import MessageShape
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import ShardLayout, trainable
from paceline.training.parameters.worker_state import WorkerState


class ShardValues:
    """A shard's parameters in memory of their own, with so many bytes before them."""

    def __init__(self, layout: ShardLayout, dtype: torch.dtype, head: int) -> None:
        memory = torch.zeros(head + layout.length * dtype.itemsize, dtype=torch.uint8)
        self.flat = memory[head:].view(dtype)
        self.views = layout.parameter_views(self.flat)
        self.buffers = layout.buffer_views(self.flat)
        #: What an answer to a push is received in, and of it the parameters.
        self.answer: memoryview = memory.numpy().data
        self.raw = self.answer[head:]


class ShardReplica:
    """A worker's copy of one shard, and the vector that it pushes.

    Parameters arrive in the memory that the module computes with: it computes nothing until they are complete.
    """

    def __init__(self, layout: ShardLayout, dtype: torch.dtype, parameters: Sequence[Tensor], vector: Vector) -> None:
        self._layout, self._dtype, self._parameters = layout, dtype, parameters
        self._head = HEAD if isinstance(vector, CodedVector) else 0
        #: What the module computes with.
        self.values = self._moved_to(ShardValues(layout, dtype, self._head))
        self.vector = vector
        #: Reads answers that are coded; None where they are the parameters.
        self.reader: PulledReader | None = None
        #: The version of which the server knows what this worker has; -1 where the next answer has to be whole, since
        #: nothing was answered yet, or it was pulled.
        self.noted = -1

    def take(self, body: memoryview) -> None:
        """Compute with these parameters from now on, which may have the head of an answer before them."""
        if body.obj is not self.values.raw.obj:
            self.values.raw[:] = body[-len(self.values.raw) :]

    def _moved_to(self, values: ShardValues) -> ShardValues:
        """Let the module compute with its parameters in this memory."""
        for parameter, view in zip(self._parameters, values.views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        return values

    def move(self) -> None:
        """Compute in other memory: parameters that are not wanted may still be arriving in this one."""
        self.values = self._moved_to(ShardValues(self._layout, self._dtype, self._head))

    def save_pulled(self) -> None:
        """Write what the gradient was computed from, if the rule wants it."""
        if len(self.vector.before):
            self.vector.before.copy_(self.values.flat.view(torch.uint8))


class GradientSide:
    """`client.Side` of a worker that pushes gradients."""

    def __init__(self, runner: PlanRunner, server: Server, number: int) -> None:
        """`number` is that of the process."""
        self.runner, self.number, layout, replica = runner, number, runner.layout, runner.replica
        named = trainable(replica.module)
        numbers = {id(parameter): n for n, parameter in enumerate(replica.parameters)}
        owned = [[named[span.name] for span in shard.parameters] for shard in layout.shards]
        uses_pulled, codec, seed = server.rule.uses_pulled, runner.plan.codec, runner.job.seed
        pools = [vector_pool(shard, layout, uses_pulled, codec, seed, server.gathers) for shard in layout.shards]
        self.shards = [
            ShardReplica(shard, layout.dtype, mine, pool.take())
            for shard, mine, pool in zip(layout.shards, owned, pools, strict=True)
        ]
        if (pull := runner.plan.pull) is not None:
            for shard, mine in zip(layout.shards, self.shards, strict=True):
                mine.reader = PulledReader(MessageShape(pull, shard, layout.dtype), seed)
        #: For each shard, the numbers of its parameters in the replica.
        self.parameters = [[numbers[id(parameter)] for parameter in mine] for mine in owned]
        #: The encoder until a shard says that it has taken what was encoded last. What no shard has taken, since others
        #: had pushed the batch, is in no trace, and leaves what is owed as it was.
        self._unsettled: GradientEncoder | None = None
        if runner.encoder is not None and runner.state_writer.found is not None:
            runner.encoder.restore(runner.state_writer.found)

    def begin(self, task: int) -> None:
        """Do nothing: the data are not divided into parts."""

    def take(self, task: int, computed: GradientSum, bases: Sequence[int]) -> None:
        """Write the vectors to push for a task."""
        vector = self.shards[0].vector
        if isinstance(vector, SumVector):
            vector.write(computed, bases[0])
            return
        gradients, encoder = self.runner.learner.finalize(computed), self.runner.encoder
        moving = self.runner.replica.moving
        for number, (shard, numbers) in enumerate(zip(self.shards, self.parameters, strict=True)):
            mine, vector = [gradients[n] for n in numbers], shard.vector
            if isinstance(vector, GradientVector):
                vector.write(mine, moving, bases)
            elif isinstance(vector, CodedVector):
                assert encoder is not None
                vector.bases[:] = bases
                encoder.write(number, mine, moving, (float(shard.noted < 0), 0.0), vector.message, task, computed.part)
            shard.save_pulled()
        self._unsettled = encoder

    def body(self, shard: int) -> Sequence[Buffer]:
        vector = self.shards[shard].vector
        return vector.parts if isinstance(vector, GradientVector) else (vector.bytes,)

    def room(self, shard: int, size: int) -> memoryview:
        mine = self.shards[shard]
        if mine.reader is None:
            for place in (mine.values.answer, mine.values.raw):
                if len(place) == size:
                    return place
        return memoryview(bytearray(size))

    def detach_receive_buffer(self, shard: int) -> None:
        self.shards[shard].move()

    def adopt(self, shard: int, version: int, pushed: bool, body: memoryview) -> None:
        """Continue with these parameters, and with the moving buffers of the first shard."""
        mine = self.shards[shard]
        if isinstance(mine.vector, GradientVector):
            mine.vector.pushed()
        if pushed and self._unsettled is not None and taken_by(body) == (self.number, mine.vector.bases[shard]):
            self._unsettled.finalize()
            self._unsettled = None
        if mine.reader is None or not pushed:
            mine.take(body)
            mine.noted = -1
        elif version != mine.noted:  # else it has computed a batch again that it had pushed, and has the answer already
            noted = mine.reader.read(body, mine.values.raw, mine.values.views, mine.values.buffers, version)
            mine.noted = version if noted else -1
        if shard == 0 and mine.values.buffers:
            self.runner.learner.set_buffers(mine.values.buffers)

    def state(self) -> WorkerState:
        """Return what a codec owes."""
        encoder = self.runner.encoder
        return encoder.state() if encoder is not None else WorkerState()
