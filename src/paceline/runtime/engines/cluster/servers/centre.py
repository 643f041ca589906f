"""A centre, with which workers exchange replicas of their own: both ends of it.

    worker                                          server
    ------                                          ------
    steps its replica a few times
    its parameters, and what the rule carries ----> copied into this worker's place
                                                    the rule changes the copy and the centre
    continues with the copy <---------------------- the copy, once all backups have made it, too

The copy stays in its place until the worker's next push: an answer that was lost is given again with the same bits, by
whichever server is the primary then. The places lie behind the centre in the bytes of the version:

    | centre: parameters, moving buffers, the rule's memory | for each rank: its process, its batch, its copy |

A worker whose batch was pushed by another one meanwhile gets the centre instead, and starts over from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.algorithms.cluster.messages import Pushed
from paceline.algorithms.cluster.outputs import Apply
from paceline.algorithms.rules import Exchanging, Memory
from paceline.errors import FrameError
from paceline.runtime.engines.cluster.servers.history import PushHistory
from paceline.runtime.engines.cluster.servers.vector_pool import VectorPool
from paceline.runtime.engines.workers.methods.runner import PlanRunner
from paceline.runtime.links.tcp.connection import Buffer
from paceline.training.gradients.message import up
from paceline.training.gradients.payload import GradientSum
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import Layout, not_trained, trainable
from paceline.training.parameters.replicas import ExchangingReplica, exchange_with
from paceline.training.parameters.shard_version import ShardVersion, version_shape
from paceline.training.parameters.worker_state import WorkerState, copy_into

GOES_ON = -1  # in place of the version at which a worker has joined


class ReplicaVector:
    """A replica on its way to the centre and back.

    | the version at which its worker has joined, or GOES_ON | whether it is the worker's own | values | carried |
    """

    def __init__(self, layout: Layout, carried: Sequence[Memory], raw: Tensor | None = None) -> None:
        """`carried` is what the rule has a worker remember of each value: its names, shapes and types."""
        self.raw = torch.zeros(self.size(layout, carried), dtype=torch.uint8) if raw is None else raw
        (shard,) = layout.shards
        #: Integers, as an array, whose memory is that of `raw`.
        self.bases: NDArray[np.int64] = self.raw[:8].view(torch.int64).numpy()
        self.own = self.raw[8:16].view(torch.int64)
        at = up(16)
        flat = self.raw[at : at + shard.length * layout.dtype.itemsize].view(layout.dtype)
        self.values = [*shard.parameter_views(flat), *shard.buffer_views(flat)]
        at += up(flat.nbytes)
        self.carried: list[Memory] = []
        for memory in carried:
            views: Memory = {}
            for key, value in memory.items():
                views[key] = self.raw[at : at + value.nbytes].view(value.dtype).view(value.shape)
                at += up(value.nbytes)
            self.carried.append(views)
        self.bytes = self.whole = self.raw.numpy().data

    @staticmethod
    def size(layout: Layout, carried: Sequence[Memory]) -> int:
        sizes = (up(value.nbytes) for memory in carried for value in memory.values())
        return up(16) + up(layout.shards[0].length * layout.dtype.itemsize) + sum(sizes)

    def write(self, replica: ExchangingReplica, joined: int) -> None:
        """Write what a worker pushes."""
        self.bases[0] = joined
        copy_into(self.values, replica.learner.replica.values())
        for mine, carried in zip(self.carried, replica.carried, strict=True):
            for key, value in mine.items():
                value.copy_(carried[key])

    def check(self, size: int) -> None:
        """Raise FrameError if this is no replica: any numbers are one."""
        if self.bases[0] < GOES_ON:
            raise FrameError("body", f"a replica that has joined at version {self.bases[0]}")


class CentreState:
    """`ShardState` of a centre."""

    def __init__(self, job: Job, layout: Layout, number: int, rule: Exchanging, ranks: int) -> None:
        module = job.make_model()
        named, buffers = trainable(module), not_trained(module)
        (shard,) = layout.shards
        mine, moving = [named[s.name] for s in shard.parameters], [buffers[b.name] for b in shard.buffers]
        carried = [rule.carries(value.detach()) for value in (*mine, *moving)]
        shape = version_shape(shard, layout.dtype, mine, None, rule)
        size = ReplicaVector.size(layout, carried)
        self.number, self.rule, self.ranks = number, rule, ranks
        self._raw = torch.zeros(up(shape.size) + ranks * (up(16) + up(size)), dtype=torch.uint8)
        self.version = ShardVersion(shape, self._raw[: shape.size])
        self.version.start(mine, [buffer.to(layout.dtype) for buffer in moving], rule)
        places = [self._raw[up(shape.size) + n * (up(16) + up(size)) :] for n in range(ranks)]
        #: Of each rank, the number of its process and of the batch that it pushed last.
        self._whose = [place[:16].view(torch.int64) for place in places]
        self._copies = [ReplicaVector(layout, carried, place[up(16) : up(16) + size]) for place in places]
        for whose in self._whose:
            whose.fill_(-1)
        self._centre = ReplicaVector(layout, carried)
        self.vectors = VectorPool(lambda: ReplicaVector(layout, carried), size, size)
        self.everything = self._raw.numpy().data
        self.values = self.everything[: shape.values]

    def apply(self, push: Apply, vector: ReplicaVector) -> None:
        """Make a version from the one before: exchange a worker's replica with the centre."""
        place = push.worker % self.ranks
        copy = self._copies[place]
        copy.raw.copy_(vector.raw)  # the vector itself may have to be sent to a backup again
        exchange_with(self.rule, self.version, copy.values, copy.carried)
        copy.own.fill_(1)
        self._whose[place].copy_(torch.tensor([push.worker, push.batch]))

    @property
    def answered(self) -> int:
        """The bytes of the answer to the push that was applied last."""
        return len(self.values)

    def answer(self, worker: int, push: Pushed, history: PushHistory) -> Sequence[memoryview]:
        """Return what a worker continues with after a push."""
        place = worker % self.ranks
        if self._whose[place].tolist() == [worker, push.batch]:
            return (self._copies[place].bytes,)
        copy_into(self._centre.values, [*self.version.parameters, *self.version.buffers])
        return (self._centre.bytes,)

    def restore(self, body: memoryview) -> None:
        """Take another server's whole version, or a centre without what workers have pushed."""
        self._raw[: len(body)].copy_(torch.frombuffer(body, dtype=torch.uint8))


class CentreSide:
    """`client.Side` of a worker that exchanges replicas."""

    def __init__(self, runner: PlanRunner, exchange: Exchanging) -> None:
        self.agenda, learner = runner.agenda, runner.learner
        self.replica = ExchangingReplica(learner, runner.optimizer, exchange)
        self.vector = ReplicaVector(runner.layout, self.replica.carried)
        self._centre = torch.zeros(runner.layout.shards[0].length, dtype=runner.layout.dtype)
        shard = runner.layout.shards[0]
        self._values = [*shard.parameter_views(self._centre), *shard.buffer_views(self._centre)]
        self._room = memoryview(b"")
        #: The version from which it has started, until the centre knows; whether it goes on from a checkpoint.
        self._joined, self._resumed = GOES_ON, False
        state = runner.state_writer.found
        if state is not None and state.tensors:
            self.replica.restore(state)
            self._resumed = True

    def begin(self, task: int) -> None:
        if self.agenda.begins(task):
            self.replica.begin()

    def take(self, task: int, computed: GradientSum, base: Sequence[int]) -> None:
        """Make a local step."""
        self.replica.step(task, computed)
        self.vector.write(self.replica, self._joined)

    def body(self, shard: int) -> Sequence[Buffer]:
        return (self.vector.bytes,)

    def room(self, shard: int, size: int) -> memoryview:
        if len(self._room) != size:
            self._room = memoryview(bytearray(size))
        return self._room

    def detach_receive_buffer(self, shard: int) -> None:
        self._room = memoryview(b"")

    def adopt(self, shard: int, version: int, pushed: bool, body: memoryview) -> None:
        """Continue with what the centre has made of the replica, or start over from the centre."""
        (self.vector.whole if pushed else self._centre.view(torch.uint8).numpy().data)[:] = body
        if pushed and int(self.vector.own):
            copy_into(self.replica.learner.replica.values(), self.vector.values)
            for carried, source in zip(self.replica.carried, self.vector.carried, strict=True):
                for key, value in carried.items():
                    value.copy_(source[key])
            self._joined = GOES_ON
        elif self._resumed:
            self._resumed = False
        else:
            self.replica.join(self.vector.values if pushed else self._values)
            self._joined = version

    def state(self) -> WorkerState:
        return self.replica.worker_state()
