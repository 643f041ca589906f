"""The process group: a thin method per operation of torch.distributed."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from paceline.algorithms.cluster.launchers import value
from paceline.errors import UsageError
from paceline.runtime.backend import collectives, fallback, group_memory, point_to_point
from paceline.runtime.backend.collectives import Unsupported, flat
from paceline.runtime.backend.group_memory import DTYPE_NUMBERS, NO_REDUCTION, pack
from paceline.runtime.backend.progress import BACKGROUND, ProgressEngine
from paceline.runtime.backend.work import CollectiveWork, PendingWork
from paceline.runtime.links.memory import Memory, lacking
from paceline.runtime.links.rendezvous import Rendezvous

_ALLREDUCE = dist.AllreduceOptions()
_SCATTERED = dist.ReduceScatterOptions()
CPU = torch.device("cpu")


def create(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Create a group for torch.distributed: one in shared memory, or gloo's where the ranks do not share a machine."""
    rendezvous = Rendezvous(store, rank, size, timeout.total_seconds(), "the making of a process group")
    shared = rendezvous.share(lambda: _memory(group_memory.size_of(size) + point_to_point.size_of(size)), unfit=unfit())
    if isinstance(shared, str):
        if rank == 0:
            fallback.warn_once(f"this process group uses gloo, without shared memory: {shared}")
        return fallback.gloo(store, rank, size, timeout)
    memory = Memory.of(shared.descriptors[0], shared.said)
    memory.close()
    group = PacelineGroup(memory, shared.pids, store, rank, timeout)
    group.set_up()  # all have read the store: delete what is there, or a later group of the same name reads it
    if rank == 0:
        rendezvous.forget()
    group.set_up()
    return group


def unfit() -> str:
    """Why this process cannot use shared memory, or nothing."""
    if sys.platform != "linux":
        return f"runs on {sys.platform}, not on Linux"
    if trouble := lacking():
        return trouble
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return f"cannot watch processes (pidfd_open: {error})"
    return ""


def _memory(size: int) -> tuple[list[int], int]:
    memory = Memory(size)
    return [memory.descriptor], memory.size


def reduction_of(opts: Any) -> int:
    """Return the number of a reduction, or raise UsageError if there is no such reduction here."""
    reduction = int(opts.reduceOp.op)
    if reduction >= len(collectives.COMBINE):
        allowed = ", ".join(group_memory.REDUCTIONS[: len(collectives.COMBINE)])
        raise UsageError(f"the paceline backend has no {group_memory.REDUCTIONS[reduction]}; allowed: {allowed}")
    return reduction


def call_of(operation: int, vector: Tensor, reduction: int = NO_REDUCTION, root: int = -1) -> int:
    return pack(operation, DTYPE_NUMBERS[vector.dtype], vector.numel(), reduction, root)


Method = TypeVar("Method", bound=Callable[..., Any])


def or_fallback(method: Method) -> Method:
    """Let another backend do what is unsupported here (a sparse tensor, a GPU's), by its method of the same name."""

    @functools.wraps(method)
    def do(self: PacelineGroup, *arguments: Any, **named: Any) -> Any:
        try:
            return method(self, *arguments, **named)
        except Unsupported as why:
            other = self._fallback_for(why, method.__name__)
            return getattr(other, method.__name__)(*arguments, **named)

    return do  # type: ignore[return-value]


# The type checker knows of `ProcessGroup` the overloads of C++, but PyTorch calls only those of lists and options.
_Group: Any = dist.ProcessGroup


class PacelineGroup(_Group):  # type: ignore[misc]
    """A process group whose collectives go through shared memory."""

    def __init__(self, memory: Memory, pids: list[int], store: Store, rank: int, timeout: timedelta) -> None:
        super().__init__(rank, len(pids))
        # Ranks outside of the group need cores, too.
        crowd = max(len(pids), value(os.environ, "LOCAL_WORLD_SIZE"), _world_size())
        self._engine = ProgressEngine(memory, rank, pids, timeout.total_seconds(), crowd)
        self._memory = self._engine.memory
        self._store, self._timeout, self._ranks = store, timeout, len(pids)
        self._fallbacks: dict[str, Any] = {}
        self._name = self._description = ""

    def set_up(self) -> None:
        """Wait until all ranks have made the group."""
        self._do(pack(group_memory.SET_UP), [], collectives.barrier(pack(group_memory.SET_UP))).wait()

    # Names, as PyTorch's C++ asks for them: its own would look for a backend behind the group.

    def getBackendName(self) -> str:  # noqa: N802
        return "paceline"

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def get_group_store(self) -> Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU, *(torch.device(device) for device in self._fallbacks if device != "cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        if device.type in self._fallbacks and device.type != "cpu":
            return self._fallbacks[device.type]._get_backend(device)
        return fallback.BackendInfo(self._memory.rank, self._ranks)

    def _get_sequence_number_for_group(self) -> int:
        return self._memory.round

    def set_timeout(self, timeout: timedelta) -> None:
        self._engine.seconds = timeout.total_seconds()

    def shutdown(self) -> None:
        """Called by destroy_process_group."""
        # A send returns once its blocks are in the ring: what does not fit is still to be written.
        self._engine.transfers.flush()
        self._close("was destroyed")

    def abort(self) -> None:
        self._close("was aborted")

    def _close(self, why: str) -> None:
        self._engine.close(why)
        for other in self._fallbacks.values():
            other.abort()
        self._fallbacks.clear()

    # To all, from all

    @or_fallback
    def allreduce(self, tensors: list[Tensor], opts: Any = _ALLREDUCE) -> dist.Work:
        reduction = reduction_of(opts)
        steps, vectors = [], [flat(tensor) for tensor in tensors]  # [1]
        for vector in vectors:
            call = call_of(group_memory.ALL_REDUCE, vector, reduction)
            steps.append(collectives.all_reduce(self._memory, call, vector, reduction))
        return self._do_each(group_memory.ALL_REDUCE, steps, tensors, vectors, opts)

    allreduce_coalesced = allreduce

    def barrier(self, opts: Any = None) -> dist.Work:
        work = self._do(pack(group_memory.BARRIER), [], collectives.barrier(pack(group_memory.BARRIER)), opts)
        if not work.done and opts is not None and not opts.asyncOp:
            work.wait(opts.timeout)
        return work

    @or_fallback
    def allgather(self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self._gather(group_memory.ALL_GATHER, output_tensors, input_tensors, output_tensors, opts)

    @or_fallback
    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Gather several tensors; unlike `allgather` it gets a list of outputs for each rank."""
        outputs = [[each[number] for each in output_lists] for number in range(len(inputs))]
        return self._gather(group_memory.ALL_GATHER, outputs, inputs, output_lists, opts)

    @or_fallback
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        return self._all_gather_whole([output], [tensor], output, opts)

    @or_fallback
    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        return self._all_gather_whole(outputs, inputs, outputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @or_fallback
    def reduce_scatter(
        self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any = _SCATTERED
    ) -> dist.Work:
        return self._reduce_scatter(outputs, [[flat(each) for each in inputs] for inputs in input_lists], outputs, opts)

    @or_fallback
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = _SCATTERED) -> dist.Work:
        return self._reduce_scatter([output], [self._parts(flat(tensor))], output, opts)

    @or_fallback
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = _SCATTERED
    ) -> dist.Work:
        return self._reduce_scatter(outputs, [self._parts(flat(tensor)) for tensor in inputs], outputs, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @or_fallback
    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        into = [flat(tensor) for tensor in outputs]
        return self._all_to_all(into, [flat(tensor) for tensor in inputs], outputs, into, opts)

    @or_fallback
    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> dist.Work:
        flat_output = flat(output)
        into = self._parts(flat_output, output_splits, output)
        return self._all_to_all(into, self._parts(flat(tensor), input_splits, tensor), [output], [flat_output], opts)

    alltoall_base = all_to_all_single

    # To one, from one

    @or_fallback
    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        root, steps, vectors = opts.rootRank, [], [flat(tensor) for tensor in tensors]
        for vector in vectors:
            call = call_of(group_memory.BROADCAST, vector, root=root)
            steps.append(collectives.broadcast(self._memory, call, vector, root))
        return self._do_each(group_memory.BROADCAST, steps, tensors, vectors, opts)

    @or_fallback
    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        reduction, root, steps, vectors = reduction_of(opts), opts.rootRank, [], [flat(tensor) for tensor in tensors]
        for vector in vectors:
            call = call_of(group_memory.REDUCE, vector, reduction, root)
            steps.append(collectives.reduce(self._memory, call, vector, reduction, root))
        return self._do_each(group_memory.REDUCE, steps, tensors, vectors, opts)

    @or_fallback
    def gather(self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any) -> dist.Work:
        outputs = output_tensors if self._memory.rank == opts.rootRank else [[] for _ in input_tensors]
        return self._gather(group_memory.GATHER, outputs, input_tensors, output_tensors, opts, opts.rootRank)

    @or_fallback
    def scatter(self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any) -> dist.Work:
        root, (output,) = opts.rootRank, output_tensors
        vector = flat(output)
        inputs = [flat(tensor) for tensor in input_tensors[0]] if self._memory.rank == root else []
        _same_size(inputs, vector)
        call = call_of(group_memory.SCATTER, vector, root=root)
        steps = collectives.scatter(self._memory, call, vector, inputs, root)
        return self._do_each(group_memory.SCATTER, [steps], output_tensors, [vector], opts)

    @or_fallback
    def send(self, tensors: list[Tensor], dst_rank: int, tag: int) -> dist.Work:
        transfer = point_to_point.Transfer(self._engine, group_memory.SEND, tensors[0], dst_rank, tag)
        self._engine.transfers.send(transfer)
        return self._watched(transfer)

    @or_fallback
    def recv(self, tensors: list[Tensor], src_rank: int, tag: int) -> dist.Work:
        transfer = point_to_point.Transfer(self._engine, group_memory.RECV, tensors[0], src_rank, tag)
        self._engine.transfers.receive(transfer)
        return self._watched(transfer)

    @or_fallback
    def recv_anysource(self, tensors: list[Tensor], tag: int) -> dist.Work:
        return self.recv(tensors, -1, tag)

    # What several of the operations share

    def _do(self, call: int, outputs: Any, steps: Iterator[int], opts: Any = None) -> CollectiveWork:
        """Begin a collective."""
        work = CollectiveWork(self._engine, call, outputs, steps)
        self._engine.start(work)
        if opts is None or opts.asyncOp:
            self._watched(work)
        return work

    def _watched(self, work: PendingWork) -> PendingWork:
        """Let the background thread look after a work that no thread may wait for."""
        if not work.done:
            BACKGROUND.watch(self._engine)
        return work

    def _do_each(
        self, operation: int, steps: Sequence[Iterator[int]], tensors: Any, vectors: Sequence[Tensor], opts: Any
    ) -> CollectiveWork:
        return self._do(pack(operation), tensors, collectives.one_after_another(steps, tensors, vectors), opts)

    def _gather(
        self,
        operation: int,
        output_lists: list[list[Tensor]],
        inputs: list[Tensor],
        work_outputs: Any,
        opts: Any,
        root: int = -1,
    ) -> CollectiveWork:
        steps, tensors, vectors = [], [], []
        for outputs, tensor in zip(output_lists, inputs, strict=True):
            vector, into = flat(tensor), [flat(output) for output in outputs]
            _same_size(into, vector)
            call = call_of(operation, vector, root=root)
            steps.append(collectives.all_gather(self._memory, call, into, vector))
            tensors += outputs
            vectors += into
        return self._do(pack(operation), work_outputs, collectives.one_after_another(steps, tensors, vectors), opts)

    def _all_gather_whole(
        self, outputs: list[Tensor], inputs: list[Tensor], work_outputs: Any, opts: Any
    ) -> CollectiveWork:
        steps, wholes = [], [flat(output) for output in outputs]
        for flat_output, tensor in zip(wholes, inputs, strict=True):
            vector, into = flat(tensor), self._parts(flat_output)
            _same_size(into, vector)
            steps.append(collectives.all_gather(self._memory, call_of(group_memory.ALL_GATHER, vector), into, vector))
        together = collectives.one_after_another(steps, outputs, wholes)
        return self._do(pack(group_memory.ALL_GATHER), work_outputs, together, opts)

    def _reduce_scatter(
        self, outputs: list[Tensor], input_lists: list[list[Tensor]], work_outputs: Any, opts: Any
    ) -> CollectiveWork:
        reduction, steps, vectors = reduction_of(opts), [], [flat(output) for output in outputs]
        for vector, inputs in zip(vectors, input_lists, strict=True):
            _same_size([inputs[self._memory.rank]], vector)
            numbers = sum(len(part) for part in inputs)
            call = pack(group_memory.REDUCE_SCATTER, DTYPE_NUMBERS[vector.dtype], numbers, reduction)
            steps.append(collectives.reduce_scatter(self._memory, call, vector, inputs, reduction))
        together = collectives.one_after_another(steps, outputs, vectors)
        return self._do(pack(group_memory.REDUCE_SCATTER), work_outputs, together, opts)

    def _all_to_all(
        self, into: Sequence[Tensor], inputs: Sequence[Tensor], tensors: list[Tensor], vectors: list[Tensor], opts: Any
    ) -> CollectiveWork:
        call = pack(group_memory.ALL_TO_ALL, DTYPE_NUMBERS[inputs[0].dtype])
        steps = collectives.all_to_all(self._memory, call, into, inputs)
        return self._do(call, tensors, collectives.one_after_another([steps], tensors, vectors), opts)

    def _parts(self, vector: Tensor, splits: Sequence[int] = (), tensor: Tensor | None = None) -> list[Tensor]:
        """Cut a vector into a part for each rank: equal parts, or as many rows of the `tensor` as the splits say."""
        if splits and tensor is not None:
            row = len(vector) // max(1, len(tensor))
            return list(vector.split([count * row for count in splits]))
        length, rest = divmod(len(vector), self._ranks)
        if rest:
            raise UsageError(f"{len(vector)} numbers cannot be cut into {self._ranks} equal parts, one for each rank")
        return [vector[rank * length : (rank + 1) * length] for rank in range(self._ranks)]

    def _fallback_for(self, why: Unsupported, operation: str) -> Any:
        """Return a group of another backend. All ranks come here in the same operation, and so create it together."""
        if why.device not in self._fallbacks:
            # In a round of its own: a rank that calls something else is named here, before the other backend waits.
            self._do(pack(group_memory.CHANGE), [], collectives.barrier(pack(group_memory.CHANGE))).wait()
            if why.device == "cpu":
                if self._memory.rank == 0:
                    fallback.warn_once(f"the paceline backend leaves {operation} of {why.what} to gloo")
                group = fallback.gloo(self._store, self._memory.rank, self._ranks, self._timeout)
            else:
                group = fallback.group_of_device(why.device, self, self._timeout)
            self._fallbacks[why.device] = group
        return self._fallbacks[why.device]


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 0


def _same_size(vectors: Sequence[Tensor], one: Tensor) -> None:
    for vector in vectors:
        if len(vector) != len(one) or vector.dtype != one.dtype:
            raise UsageError(
                f"a list has a tensor of {len(vector)} {vector.dtype} where {len(one)} {one.dtype} are exchanged; "
                "all must be the same"
            )
