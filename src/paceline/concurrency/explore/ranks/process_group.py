"""The backend of `torch.distributed` that takes the place of gloo, NCCL and MPI.

It is registered as PyTorch provides for, so that DDP, device meshes, object collectives and functional collectives work
on it as on any backend. A call announces itself, and waits until all ranks of the group have brought theirs; then
each rank computes its own result from what all have brought.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import reduce
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.futures import Future

from paceline.concurrency.explore.finding import Finding, at
from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.interpose.control import step
from paceline.concurrency.explore.ranks.meetings import Call, Group, Meeting, Parcel, Post, different

BACKEND = "explored"
_groups: dict[str, Group] = {}
_post = Post()
_made: dict[tuple[int, tuple[int, ...]], int] = {}
Tensors = list[torch.Tensor]
native: Any = torch._C._distributed_c10d


class Work(dist._Work):  # type: ignore[misc, name-defined]
    """A collective or message that was begun."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        super().__init__()
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    def wait(self, timeout: Any = None) -> bool:
        if self._finish is not None:
            finish, self._finish = self._finish, None
            self._result = finish()
        return True

    def is_completed(self) -> bool:
        return self._finish is None

    is_success = is_completed

    def result(self) -> Any:
        self.wait()
        return self._result

    def get_future(self) -> Future[Any]:
        # DDP waits for the future where no thread can be scheduled, so the work is done before it gets it.
        self.wait()
        future: Future[Any] = Future()
        future.set_result(self._result)
        return future


_ProcessGroup: Any = dist.ProcessGroup  # whose methods PyTorch declares with several signatures each


class ExploredGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group as one rank has it."""

    def __init__(self, name: str, rank: int, members: tuple[int, ...]) -> None:
        super().__init__(rank, len(members))
        self._name, self._position, self._members = name, rank, members
        self._group = _groups.setdefault(name, Group(members))

    # ---- collectives

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._reduction("all_reduce", tensors, opts, tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        outputs = tensors if self._position == opts.rootRank else []
        return self._reduction(f"reduce to {opts.rootRank}", tensors, opts, outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Work:
        mine: Callable[[list[Tensors]], Any] = lambda all_: [[each[self._position] for each in all_]]  # noqa: E731
        return self._reduction("reduce_scatter", inputs[0], opts, outputs, mine)

    def _reduction(self, name: str, inputs: Tensors, opts: Any, outputs: Tensors, columns: Any = None) -> Work:
        name, _, root = name.partition(" ")
        operator = _operator(opts)
        detail = f"{operator} of {_shapes(inputs)} {root}".rstrip()

        def reduced(all_: list[Tensors]) -> Tensors:
            every = zip(*all_, strict=True) if columns is None else columns(all_)
            return [_REDUCE[operator](torch.stack(list(each))) for each in every]

        return self._collective(name, detail, inputs, outputs, reduced)

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        detail = f"{_shapes(tensors)} from {opts.rootRank}"
        return self._collective("broadcast", detail, tensors, tensors, lambda all_: all_[opts.rootRank])

    def barrier(self, opts: Any = None) -> Work:
        return self._collective("barrier")

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        flat = [each for output in outputs for each in output]

        def results(all_: list[Tensors]) -> Tensors:
            return [each for of_one in zip(*all_, strict=True) for each in of_one]

        return self._collective("all_gather", _shapes(inputs), inputs, flat, results, outputs)

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        def joined(all_: list[Tensors]) -> Tensors:
            return [torch.cat([each[0].reshape(-1) for each in all_])]

        return self._collective("all_gather", _shapes([source]), [source], [output.view(-1)], joined, [output])

    def all_gather_single_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Work:
        return _together([self.all_gather_single(*each) for each in zip(outputs, sources, strict=True)], outputs)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Work:
        mine = outputs[0] if self._position == opts.rootRank else []
        detail = f"{_shapes(inputs)} to {opts.rootRank}"
        return self._collective("gather", detail, inputs, mine, lambda all_: [each[0] for each in all_], outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Work:
        detail, data = f"{_shapes(outputs)} from {opts.rootRank}", inputs[0] if inputs else []
        return self._collective("scatter", detail, data, outputs, lambda all_: [all_[opts.rootRank][self._position]])

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        parts = list(source.reshape(len(self._members), -1))
        return self.reduce_scatter([output.view(-1)], [parts], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Work:
        works = [self.reduce_scatter_single(*each, opts) for each in zip(outputs, sources, strict=True)]
        return _together(works, outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self._collective("all_to_all", "", inputs, outputs, lambda all_: [each[self._position] for each in all_])

    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Work:
        size = len(self._members)
        outputs = list(output.split(list(output_sizes) or output.shape[0] // size))
        inputs = list(source.split(list(input_sizes) or source.shape[0] // size))
        return self.alltoall(outputs, inputs, opts)

    # Other names, and those of earlier versions of PyTorch.
    allreduce_coalesced = allreduce
    _allgather_base, _reduce_scatter_base, alltoall_base = all_gather_single, reduce_scatter_single, all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _collective(
        self,
        name: str,
        detail: str = "",
        inputs: Tensors = [],  # noqa: B006  # only read
        outputs: Tensors = [],  # noqa: B006
        results: Callable[[list[Tensors]], Iterable[torch.Tensor]] = lambda all_: (),
        value: Any = None,
    ) -> Work:
        """Bring the inputs to a meeting; when all ranks have come, store the results in the outputs."""
        call = Call(*_name_of_call(name), name, detail, control.place())
        meeting = self._group.arrive(self._members[self._position], call, [each.detach().clone() for each in inputs])
        if (two := different(meeting)) is not None:
            assert control.run is not None
            control.run.finish(_different(meeting, *two))

        def complete() -> Any:
            step("calls", call, ("meeting", id(meeting)), mode="read", ready=lambda: meeting.complete)
            for mine, theirs in zip(outputs, results([meeting.data[rank] for rank in self._members]), strict=False):
                mine.copy_(theirs)
            return outputs if value is None else value

        return Work(complete)

    # ---- messages

    def send(self, tensors: Tensors, receiver: int, tag: int) -> Work:
        message = Parcel(self._position, False, tensors[0].detach().clone())
        _post.bring(self._name, receiver, tag, message)
        # A real backend may keep a small message until it is received, but a large one only waits.
        return Work(lambda: _meet(f"send to rank {self._members[receiver]}", message))

    def recv(self, tensors: Tensors, sender: int | None, tag: int) -> Work:
        request = _post.bring(self._name, self._position, tag, Parcel(sender, True))
        source = "any rank" if sender is None else f"rank {self._members[sender]}"

        def finish() -> Tensors:
            tensors[0].copy_(_meet(f"recv from {source}", request).data)
            return tensors

        return Work(finish)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        return self.recv(tensors, None, tag)

    # ---- what PyTorch asks of a group

    def size(self) -> int:
        return len(self._members)

    def rank(self) -> int:
        return self._position

    @property
    def pg_name(self) -> str:
        return distributed_c10d._world.pg_names[self]

    group_name = pg_name

    def getBackendName(self) -> str:  # noqa: N802  # as PyTorch calls it
        return BACKEND


def _meet(call: str, parcel: Parcel) -> Parcel:
    """Wait for the other side of a message."""
    step("calls", call, id(parcel), mode="read", ready=lambda: parcel.met is not None)
    assert parcel.met is not None
    return parcel.met


def _name_of_call(name: str) -> tuple[str, bool]:
    """Name a collective as the program calls it, or what DDP does on its behalf; whether Join calls it for DDP."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and control.MARK not in frame.f_globals:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module == "torch.distributed.algorithms.join":
            return name, True
        if module.startswith("torch.autograd"):
            return "gradient of DDP", False
        if module == "torch.nn.parallel.distributed":
            name = "start of DDP" if function == "__init__" else name
            name = "buffers of DDP" if function in ("_sync_buffers", "_pre_forward") else name
        elif module.startswith("torch.distributed.distributed_c10d") and function not in ("wrapper", "<lambda>"):
            name = function
        frame = frame.f_back
    return name, False


def _different(meeting: Meeting, first: int, second: int) -> Finding:
    calls = meeting.calls
    same_name = calls[first].name == calls[second].name

    def words(rank: int, full: bool) -> str:
        return f"calls {calls[rank].name}{f'({calls[rank].detail})' if full else ''}"

    scenes = tuple((f"rank {rank}", words(rank, True), calls[rank].place) for rank in (first, second))
    message = ", ".join(f"rank {rank} {words(rank, same_name)}{at(calls[rank].place)}" for rank in (second, first))
    advice = "let every rank call the same collectives in the same order"
    return Finding("collectives differ", message, scenes, advice, calls[second].place)


def _together(works: list[Work], result: Any) -> Work:
    return Work(lambda: all(work.wait() for work in works) and result)


def _operator(opts: Any) -> str:
    operator = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    return next((name for name in _REDUCE if operator == getattr(dist.ReduceOp, name.upper())), "sum")


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
    group._collective(name).wait()
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
