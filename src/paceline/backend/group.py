"""The process group: a thin method per operation of torch.distributed.

Every operation is done when its method returns, in the thread that called it; only sends and receives may be under way.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d

from paceline.backend import board as boards
from paceline.backend import calls, collectives, mail, rendezvous
from paceline.backend.calls import DTYPE_NUMBERS, NO_REDUCTION, pack
from paceline.backend.vectors import flat, settle
from paceline.backend.works import Finished
from paceline.engines.transports.shared_memory import Memory
from paceline.errors import UsageError

_ALLREDUCE = dist.AllreduceOptions()
_SCATTERED = dist.ReduceScatterOptions()


def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """What torch.distributed calls for a new group: ours, or gloo's where the ranks do not share a machine."""
    shared = rendezvous.share(store, rank, size, boards.size_of(size) + mail.size_of(size))
    if isinstance(shared, str):
        if rank == 0:
            warnings.warn(f"this process group uses gloo, without shared memory: {shared}", stacklevel=2)
        return _gloo(store, rank, size, timeout)
    group = PacelineGroup(*shared, store, rank, timeout)
    group.barrier()  # everybody has read the store: forget what is there, or a later group of the same name reads it
    if rank == 0:
        rendezvous.forget(store, size)
    group.barrier()
    return group


def _gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)
    gloo._set_sequence_number_for_group()
    return gloo


def reduction_of(opts: Any) -> int:
    reduction = int(opts.reduceOp.op)
    if reduction >= len(collectives.COMBINE):
        allowed = ", ".join(calls.REDUCTIONS[: len(collectives.COMBINE)])
        raise UsageError(f"the paceline backend has no {calls.REDUCTIONS[reduction]}; allowed: {allowed}")
    return reduction


def call_of(operation: int, vector: Tensor, reduction: int = NO_REDUCTION, root: int = -1) -> int:
    return pack(operation, DTYPE_NUMBERS[vector.dtype], vector.numel(), reduction, root)


# The type checker knows of `ProcessGroup` the overloads of C++, but PyTorch calls only those of lists and options.
_Group: Any = dist.ProcessGroup


class PacelineGroup(_Group):  # type: ignore[misc]
    def __init__(self, memory: Memory, pids: list[int], store: dist.Store, rank: int, timeout: timedelta) -> None:
        super().__init__(rank, len(pids))
        self._board = boards.Board(memory, rank, pids, timeout.total_seconds())
        self._mail = mail.Mail(memory, self._board)
        self._store, self._timeout = store, timeout
        self._fallback: Any = None
        self._lock = threading.Lock()
        # PyTorch asks a group for its devices and their backends; operations never get there.
        self._register_backend(
            torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, _distributed_c10d.Backend(rank, len(pids))
        )

    def getBackendName(self) -> str:  # noqa: N802
        return "paceline"

    def set_timeout(self, timeout: timedelta) -> None:
        self._board.seconds = timeout.total_seconds()

    def shutdown(self) -> None:
        """Called by destroy_process_group."""
        self._mail.flush()
        self.abort()

    def abort(self) -> None:
        """Whoever waits in this group, here or in another process, is told so."""
        self._board.leave()
        if self._fallback is not None:
            self._fallback.abort()

    # To all, from all

    def allreduce(self, tensors: list[Tensor], opts: Any = _ALLREDUCE) -> dist.Work:
        if tensors[0].is_sparse:
            return self._by_gloo("all_reduce of a sparse tensor").allreduce(tensors, opts)
        reduction = reduction_of(opts)
        for tensor in tensors:
            vector = flat(tensor)
            call = call_of(calls.ALL_REDUCE, vector, reduction)
            with self._lock:
                collectives.all_reduce(self._board, call, vector, reduction)
            settle(tensor, vector)
        return Finished(tensors)

    allreduce_coalesced = allreduce

    def barrier(self, opts: Any = None) -> dist.Work:
        with self._lock:
            self._board.meet(pack(calls.BARRIER))
        return Finished([])

    def allgather(self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any = None) -> dist.Work:
        for outputs, tensor in zip(output_tensors, input_tensors, strict=True):
            self._gather(calls.ALL_GATHER, outputs, tensor)
        return Finished(output_tensors)

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Unlike `allgather`, a list of outputs for each rank."""
        for number, tensor in enumerate(inputs):
            self._gather(calls.ALL_GATHER, [outputs[number] for outputs in output_lists], tensor)
        return Finished(output_lists)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        whole = flat(output)
        self._gather(calls.ALL_GATHER, self._parts(whole), tensor)
        settle(output, whole)
        return Finished([output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, tensor)
        return Finished(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(
        self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any = _SCATTERED
    ) -> dist.Work:
        for output, inputs in zip(outputs, input_lists, strict=True):
            self._reduce_scatter(output, [flat(tensor) for tensor in inputs], opts)
        return Finished(outputs)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = _SCATTERED) -> dist.Work:
        self._reduce_scatter(output, self._parts(flat(tensor)), opts)
        return Finished([output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = _SCATTERED
    ) -> dist.Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, tensor, opts)
        return Finished(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        into = [flat(tensor) for tensor in outputs]
        self._all_to_all(into, [flat(tensor) for tensor in inputs])
        for tensor, vector in zip(outputs, into, strict=True):
            settle(tensor, vector)
        return Finished(outputs)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> dist.Work:
        whole = flat(output)
        into = self._parts(whole, output_splits, output)
        self._all_to_all(into, self._parts(flat(tensor), input_splits, tensor))
        settle(output, whole)
        return Finished([output])

    alltoall_base = all_to_all_single

    # To one, from one

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        for tensor in tensors:
            vector, root = flat(tensor), opts.rootRank
            with self._lock:
                collectives.broadcast(self._board, call_of(calls.BROADCAST, vector, root=root), vector, root)
            settle(tensor, vector)
        return Finished(tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        reduction, root = reduction_of(opts), opts.rootRank
        for tensor in tensors:
            vector = flat(tensor)
            with self._lock:
                call = call_of(calls.REDUCE, vector, reduction, root)
                collectives.reduce(self._board, call, vector, reduction, root)
            settle(tensor, vector)
        return Finished(tensors)

    def gather(self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any) -> dist.Work:
        outputs = output_tensors[0] if self.rank() == opts.rootRank else []
        self._gather(calls.GATHER, outputs, input_tensors[0], opts.rootRank)
        return Finished(output_tensors)

    def scatter(self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any) -> dist.Work:
        root, (output,) = opts.rootRank, output_tensors
        vector = flat(output)
        inputs = [flat(tensor) for tensor in input_tensors[0]] if self.rank() == root else []
        self._same_size(inputs, vector)
        with self._lock:
            collectives.scatter(self._board, call_of(calls.SCATTER, vector, root=root), vector, inputs, root)
        settle(output, vector)
        return Finished(output_tensors)

    def send(self, tensors: list[Tensor], dst_rank: int, tag: int) -> dist.Work:
        letter = mail.Letter(self._mail, tensors[0], dst_rank, tag)
        self._mail.send(letter)
        return letter

    def recv(self, tensors: list[Tensor], src_rank: int, tag: int) -> dist.Work:
        letter = mail.Letter(self._mail, tensors[0], src_rank, tag)
        self._mail.receive(letter)
        return letter

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> dist.Work:
        raise UsageError("the paceline backend receives from a named rank only; give recv a src=")

    # What several of them share

    def _gather(self, operation: int, outputs: Sequence[Tensor], tensor: Tensor, root: int = -1) -> None:
        vector, into = flat(tensor), [flat(output) for output in outputs]
        self._same_size(into, vector)
        with self._lock:
            collectives.all_gather(self._board, call_of(operation, vector, root=root), into, vector)
        for output, received in zip(outputs, into, strict=True):
            settle(output, received)

    def _reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], opts: Any) -> None:
        reduction, vector = reduction_of(opts), flat(output)
        numbers = sum(len(part) for part in inputs)
        call = pack(calls.REDUCE_SCATTER, DTYPE_NUMBERS[vector.dtype], numbers, reduction)
        with self._lock:
            collectives.reduce_scatter(self._board, call, vector, inputs, reduction)
        settle(output, vector)

    def _all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Nobody knows how long the others' vectors are: everybody says so first, and everybody checks all."""
        mine = torch.tensor([[len(part) for part in inputs], [len(part) for part in outputs]])
        table = torch.empty((self.size(), *mine.shape), dtype=torch.int64)
        call = pack(calls.ALL_TO_ALL, DTYPE_NUMBERS[inputs[0].dtype])
        with self._lock:
            collectives.all_gather(self._board, call, self._parts(table.view(-1)), mine.view(-1))
            given, taken = table[:, 0], table[:, 1].T
            if not torch.equal(given, taken):
                giver, taker = (given != taken).nonzero()[0].tolist()
                raise UsageError(
                    f"all_to_all: rank {giver} gives rank {taker} {given[giver, taker]} numbers, "
                    f"which expects {taken[giver, taker]}; both must be the same"
                )
            collectives.all_to_all(self._board, call, outputs, inputs, int(given.max()))

    def _parts(self, vector: Tensor, splits: Sequence[int] = (), tensor: Tensor | None = None) -> list[Tensor]:
        """A vector's part for each rank: equal parts, or as many rows of the `tensor` as the splits say."""
        if splits and tensor is not None:
            row = len(vector) // max(1, len(tensor))
            return list(vector.split([count * row for count in splits]))
        length, rest = divmod(len(vector), self.size())
        if rest:
            raise UsageError(f"{len(vector)} numbers cannot be cut into {self.size()} equal parts, one for each rank")
        return [vector[rank * length : (rank + 1) * length] for rank in range(self.size())]

    def _same_size(self, vectors: Sequence[Tensor], one: Tensor) -> None:
        for vector in vectors:
            if len(vector) != len(one) or vector.dtype != one.dtype:
                raise UsageError(
                    f"a list has a tensor of {len(vector)} {vector.dtype} where {len(one)} {one.dtype} are exchanged; "
                    "all must be the same"
                )

    def _by_gloo(self, what: str) -> Any:
        """All ranks come here in the same operation, so that they can make the group together."""
        with self._lock:
            self._board.meet(pack(calls.ALL_REDUCE))
            if self._fallback is None:
                if self.rank() == 0:
                    warnings.warn(f"the paceline backend leaves {what} to gloo", stacklevel=3)
                self._fallback = _gloo(self._store, self.rank(), self.size(), self._timeout)
        return self._fallback
