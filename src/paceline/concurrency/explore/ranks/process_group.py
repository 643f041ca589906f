"""The backend of `torch.distributed` that takes the place of gloo, NCCL and MPI.

It is registered as PyTorch provides for, so that DDP, device meshes, object collectives and functional collectives work
on it as on any backend. Each rank computes its own result from what all have brought.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, reduce
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.futures import Future

from paceline.concurrency.explore.ranks.meetings import Parcel
from paceline.concurrency.explore.ranks.member import Member

BACKEND = "explored"
_made: dict[tuple[int, tuple[int, ...]], int] = {}
Tensors = list[torch.Tensor]
native: Any = torch._C._distributed_c10d


class Work(dist._Work):  # type: ignore[misc, name-defined]
    """A collective or message that was begun."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        super().__init__()
        self._finish = cache(finish)

    def result(self) -> Any:
        return self._finish()

    def wait(self, timeout: Any = None) -> bool:
        self._finish()
        return True

    def is_completed(self) -> bool:
        return self._finish.cache_info().currsize > 0

    is_success = is_completed

    def get_future(self) -> Future[Any]:
        # DDP waits for the future where no thread can be scheduled, so the work is done before it gets it.
        future: Future[Any] = Future()
        future.set_result(self._finish())
        return future


class Message(Work):
    """A message that is received."""

    def __init__(self, receive: Callable[[], Parcel], into: torch.Tensor) -> None:
        super().__init__(lambda: [into.copy_(self._receive().data)])
        self._receive = cache(receive)

    def _source_rank(self) -> int | None:
        return self._receive().sender


_ProcessGroup: Any = dist.ProcessGroup  # whose methods PyTorch declares with several signatures each


class ExploredGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group as PyTorch calls it."""

    def __init__(self, name: str, rank: int, members: tuple[int, ...]) -> None:
        super().__init__(rank, len(members))
        self._member = Member(name, rank, members)

    # ---- collectives

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._call("all_reduce", tensors, tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        return self._call("reduce", tensors, tensors, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Work:
        return self._call("reduce_scatter", inputs[0], outputs, opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        return self._call("broadcast", tensors, tensors, opts)

    def barrier(self, opts: Any = None) -> Work:
        return self._call("barrier", [], [])

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        return self._call("all_gather", inputs, list(chain(*outputs)), value=outputs)

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        return self._call("all_gather", [source.reshape(-1)], list(output.view(self.size(), -1)), value=[output])

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Work:
        return self._call("gather", inputs, list(chain(*outputs)), opts, outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Work:
        return self._call("scatter", list(chain(*inputs)), outputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter([output.view(-1)], [list(source.reshape(self.size(), -1))], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self._call("all_to_all", inputs, outputs)

    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Work:
        outputs = list(output.split(list(output_sizes) or output.shape[0] // self.size()))
        return self.alltoall(outputs, list(source.split(list(input_sizes) or source.shape[0] // self.size())))

    def all_gather_single_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Work:
        return _together([self.all_gather_single(*each) for each in zip(outputs, sources, strict=True)], outputs)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Work:
        works = [self.reduce_scatter_single(*each, opts) for each in zip(outputs, sources, strict=True)]
        return _together(works, outputs)

    # Other names, and those of earlier versions of PyTorch.
    allreduce_coalesced = allreduce
    _allgather_base, _reduce_scatter_base, alltoall_base = all_gather_single, reduce_scatter_single, all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _call(self, name: str, inputs: Tensors, outputs: Tensors, opts: Any = None, value: Any = None) -> Work:
        """Bring the inputs to a meeting; when all ranks have come, store the results in the outputs."""
        # Only the root has the inputs of a scatter, and parts for other ranks may have any size.
        words = _shapes({"scatter": outputs, "all_to_all": []}.get(name, inputs))
        operator = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        operation = next((each for each in _REDUCE if operator == getattr(dist.ReduceOp, each.upper())), "sum")
        words = f"{operation} of {words}" if "reduce" in name else words
        data, root = [each.detach().clone() for each in inputs], getattr(opts, "rootRank", 0)
        results = self._member.call(name, data, words, root, lambda parts: _REDUCE[operation](torch.stack(list(parts))))

        def complete() -> Any:
            for mine, theirs in zip(outputs, results(), strict=False):
                mine.copy_(theirs)
            return outputs if value is None else value

        return Work(complete)

    # ---- messages

    def send(self, tensors: Tensors, receiver: int, tag: int) -> Work:
        return Work(self._member.send(receiver, tag, tensors[0].detach().clone()))

    def recv(self, tensors: Tensors, sender: int | None, tag: int) -> Work:
        return Message(self._member.receive(sender, tag), tensors[0])

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        return self.recv(tensors, None, tag)

    # ---- what PyTorch asks of a group

    def size(self) -> int:
        return len(self._member.members)

    def rank(self) -> int:
        return self._member.position

    @property
    def pg_name(self) -> str:
        return distributed_c10d._world.pg_names[self]

    group_name = pg_name

    def getBackendName(self) -> str:  # noqa: N802  # as PyTorch calls it
        return BACKEND


def _together(works: list[Work], result: Any) -> Work:
    return Work(lambda: all(work.wait() for work in works) and result)


_REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda stack: stack.sum(0, dtype=stack.dtype),
    "avg": lambda stack: stack.mean(0),
    "product": lambda stack: stack.prod(0),
    "min": lambda stack: stack.amin(0),
    "max": lambda stack: stack.amax(0),
    "band": lambda stack: reduce(torch.bitwise_and, stack),
    "bor": lambda stack: reduce(torch.bitwise_or, stack),
    "bxor": lambda stack: reduce(torch.bitwise_xor, stack),
}


def _shapes(tensors: Tensors) -> str:
    return ", ".join(f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in tensors)


def _create(options: Any, _: Any) -> ExploredGroup:
    """Make the group of one rank; all of its ranks must come to make it."""
    members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    # PyTorch counts the groups of this process, and so of all ranks; each rank counts its own groups of these members.
    me = members[options.group_rank], members
    number = _made[me] = _made.get(me, 0) + 1
    group = ExploredGroup(f"{members} {number}", options.group_rank, members)
    name = "new_group" if options.global_ranks_in_group else "init_process_group"
    group._member.call("barrier", [], name=name)()
    return group


_init, _new_group = dist.init_process_group, dist.new_group


def _init_process_group(backend: Any = None, method: Any = None, timeout: Any = None, *args: Any, **rest: Any) -> None:
    given = {**dict(zip(("world_size", "rank"), args, strict=False)), **rest}
    world, rank = given.get("world_size", -1), given.get("rank", -1)
    world = int(os.environ["WORLD_SIZE"]) if world < 0 else world
    rank = int(os.environ["RANK"]) if rank < 0 else rank
    _init(BACKEND, store=native.HashStore(), world_size=world, rank=rank)


def install() -> None:
    """Register the backend, and let it take the place of every other one."""
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    modules: tuple[Any, ...] = (dist, distributed_c10d)
    for module in modules:
        module.init_process_group = _init_process_group
        module.new_group = lambda ranks=None, *_, **__: _new_group(ranks)
        module.monitored_barrier = lambda group=None, *_, **__: dist.barrier(group)
    native._set_thread_isolation_mode(True)  # groups are found by their names, which are the same on all ranks
