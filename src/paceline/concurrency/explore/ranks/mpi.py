"""mpi4py: communicators over the same meetings and messages as `torch.distributed`.

Lower-case methods carry objects, which are pickled, and upper-case ones the contents of buffers. A message waits until
it is received, as MPI allows of every `send`.
"""

from __future__ import annotations

import operator
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from functools import partialmethod, reduce
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.ranks.meetings import Parcel
from paceline.concurrency.explore.ranks.member import Member

ANY, IN_PLACE = -1, object()
TYPES = ("BOOL", "BYTE", "CHAR", "INT", "LONG", "INT32_T", "INT64_T", "FLOAT", "DOUBLE")
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": operator.add,
    "PROD": operator.mul,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "LAND": lambda one, other: one and other,
    "LOR": lambda one, other: one or other,
    "MIN": lambda one, other: (torch.minimum if isinstance(one, torch.Tensor) else min)(one, other),
    "MAX": lambda one, other: (torch.maximum if isinstance(one, torch.Tensor) else max)(one, other),
}
#: What each collective is called elsewhere, and what follows the data in a call.
COLLECTIVES: dict[str, tuple[str, tuple[str, ...]]] = {
    "barrier": ("barrier", ()),
    "bcast": ("broadcast", ("root",)),
    "scatter": ("scatter", ("root",)),
    "gather": ("gather", ("root",)),
    "allgather": ("all_gather", ()),
    "alltoall": ("all_to_all", ()),
    "reduce": ("reduce", ("op", "root")),
    "allreduce": ("all_reduce", ("op",)),
    "scan": ("scan", ("op",)),
}


class Request:
    """A message that was begun."""

    def __init__(self, finish: Callable[[], Parcel], buffer: Any = None) -> None:
        self._finish, self._buffer = finish, buffer

    def wait(self, status: Any = None) -> Any:
        parcel = self._finish()
        vars(status or SimpleNamespace()).update(source=parcel.sender, tag=parcel.tag)
        return _received(parcel.data, self._buffer)

    @staticmethod
    def waitall(requests: Sequence[Request]) -> list[Any]:
        return [each.wait() for each in requests]

    Wait, Waitall = wait, waitall


class Comm:
    """A communicator as one rank has it; `collective` has a method for each name, in lower and in upper case."""

    def __init__(self, name: str, rank: int, members: tuple[int, ...]) -> None:
        self.rank, self.size = rank, len(members)
        self.Get_rank, self.Get_size = lambda: self.rank, lambda: self.size
        self._name, self._member = name, Member(name, rank, members)

    def isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request(self._member.send(dest, tag, pickle.dumps(buf)))

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:  # noqa: N802  # as mpi4py calls it
        return Request(self._member.send(dest, tag, _flat(buf).clone()))

    def irecv(self, buf: Any = None, source: int = ANY, tag: int = ANY) -> Request:
        return Request(self._member.receive(*(None if each == ANY else each for each in (source, tag))), buf)

    Irecv = irecv

    def blocking(self, begin: str, *args: Any, status: Any = None, **settings: Any) -> Any:
        return getattr(self, begin)(*args, **settings).wait(status)

    def exchange(
        self,
        begin: str,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY,
        recvtag: int = ANY,
        status: Any = None,
    ) -> Any:
        request = getattr(self, begin)(buf, dest, sendtag)
        value = self.irecv(recvbuf, source, recvtag).wait(status)
        request.wait()
        return value

    def collective(self, name: str, data: Any = None, *args: Any, **settings: Any) -> Any:
        (kind, parameters), is_buffer = COLLECTIVES[name.lower()], name[0].isupper()
        buffer, *others = args if is_buffer and kind not in ("broadcast", "barrier") else (data, *args)
        rest = dict(zip(parameters, others, strict=False)) | settings
        data, op = rest.get("obj", rest.get("sendobj", data)), rest.get("op", operator.add)
        has_parts = kind in ("scatter", "all_to_all")
        if is_buffer:
            flat = _flat(buffer if data is IN_PLACE else data)
            parts: list[Any] = [each.clone() for each in flat.chunk(self.size if has_parts else 1)]
        else:
            parts = [pickle.dumps(each) for each in (data or () if has_parts else (data,))]
        words = next((each for each in OPERATORS if OPERATORS[each] is op), "") if "op" in parameters else ""
        reduced: Any = lambda each: reduce(op, map(_received, each))  # noqa: E731
        results = list(map(_received, self._member.call(kind, parts, words, rest.get("root", 0), reduced, name)()))
        if is_buffer:
            return _received(torch.cat(results), buffer) if results else None
        return results or None if kind in ("gather", "all_gather", "all_to_all") else next(iter(results), None)

    def Split(self, color: int = 0, key: int = 0) -> Comm:  # noqa: N802
        """Return the communicator of the ranks with the same colour."""
        every = self.collective("allgather", (color, key, self._member.members[self.rank]))
        members = tuple(rank for each, _, rank in sorted(every) if each == color)
        return Comm(f"{self._name} {self._member.calls} {color}", members.index(every[self.rank][2]), members)

    Dup = Clone = Split

    def Abort(self, errorcode: int = 1) -> None:  # noqa: N802
        raise SystemExit(errorcode)


def _received(data: Any, buffer: Any = None) -> Any:
    """Return an object that was pickled; store numbers in a buffer, where there is one."""
    if isinstance(data, torch.Tensor) and buffer is not None:
        _flat(buffer)[: len(data)].copy_(data)
    return pickle.loads(data) if isinstance(data, bytes) else data


def _flat(buffer: Any) -> torch.Tensor:
    """Return what a buffer holds, which may come with its count and type."""
    data = buffer[0] if isinstance(buffer, list | tuple) else buffer
    return torch.empty(0) if data is None else torch.as_tensor(data).view(-1)


class _MPI(ModuleType):
    """The module, whose communicators are those of the rank that asks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if name in ("COMM_WORLD", "COMM_SELF"):
            return Comm(name, rank, tuple(range(size))) if name == "COMM_WORLD" else Comm(f"{name} {rank}", 0, (rank,))
        return name if name in TYPES else control.refuse(f"mpi4py.MPI.{name}")


def install() -> None:
    """Let `from mpi4py import MPI` import the model."""
    for name in COLLECTIVES:
        setattr(Comm, name, partialmethod(Comm.collective, name))
        setattr(Comm, name.capitalize(), partialmethod(Comm.collective, name.capitalize()))
    for name, begin in (("send", "isend"), ("Send", "Isend"), ("recv", "irecv"), ("Recv", "irecv")):
        setattr(Comm, name, partialmethod(Comm.blocking, begin))
    for name, begin in (("sendrecv", "isend"), ("Sendrecv", "Isend")):
        setattr(Comm, name, partialmethod(Comm.exchange, begin))
    module, package = _MPI("mpi4py.MPI"), ModuleType("mpi4py")
    classes = {"Comm": Comm, "Intracomm": Comm, "Request": Request, "Status": SimpleNamespace}
    functions = {"Init": lambda: None, "Finalize": lambda: None, "Wtime": lambda: time.time()}
    vars(module).update(OPERATORS, **classes, **functions, ANY_SOURCE=ANY, ANY_TAG=ANY, IN_PLACE=IN_PLACE)
    vars(package).update(MPI=module, __path__=[], rc=SimpleNamespace())
    sys.modules.update({"mpi4py": package, "mpi4py.MPI": module})
