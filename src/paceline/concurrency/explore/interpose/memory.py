"""What each process has of its own, although all are threads of one: it is swapped when another one continues.

A process that is forked has copies of the globals and class attributes of the program's modules, and of their locks as
they are. One that is spawned imports its modules anew. What cannot be copied, such as an open file, stays common.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any, ClassVar

from paceline.concurrency.explore.interpose.control import MARK


class Context:
    """The program's modules, the environment and random numbers of a process, or of a rank."""

    parts: ClassVar[list[Callable[[int], Any]]] = []  # further state of a library, with `leave` and `enter`
    has_forked: ClassVar[bool] = False  # so that two processes have the same modules, with contents of their own

    def __init__(self, rank: int | None = None, environment: dict[str, str] | None = None) -> None:
        self.rank = rank
        self.process: Any = None  # the current one of multiprocessing
        self.pid: int | None = None
        self.handlers: dict[int, Any] = {}  # of signals
        self._environment = environment or dict(os.environ)
        self._modules: dict[str, Any] = {}
        self._contents: list[tuple[Any, dict[str, Any]]] = []
        self._parts = [each(rank or 0) for each in self.parts]
        # Each process would draw its own seed at its start; runs must repeat themselves, so it is the rank's number.
        self._random = random.getstate() if rank is None else random.Random(1_000 + rank).getstate()

    @classmethod
    def forked(cls) -> tuple[Context, dict[int, Any]]:
        """Return a copy of the present process, and which object is the copy of which."""
        Context.has_forked = True
        child = cls()
        memo = shared_tensors()
        child._modules = _modules()
        child._contents = [
            (owner, {name: copied(value, memo) for name, value in data.items()}) for owner, data in _contents()
        ]
        return child, memo

    def leave(self) -> None:
        self._environment, self._random = dict(os.environ), random.getstate()
        self._modules = _modules()
        self._contents = list(_contents()) if Context.has_forked else []
        for name in self._modules:
            del sys.modules[name]
        for part in self._parts:
            part.leave()

    def enter(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        random.setstate(self._random)
        sys.modules.update(self._modules)
        for owner, data in self._contents:
            for name in _data(owner).keys() - data.keys():
                delattr(owner, name)
            assign = type.__setattr__ if isinstance(owner, type) else object.__setattr__  # an Enum refuses its own
            for name, value in data.items():
                if vars(owner).get(name, self) is not value:
                    assign(owner, name, value)
        for part in self._parts:
            part.enter()


def _modules() -> dict[str, Any]:
    return {name: module for name, module in list(sys.modules.items()) if MARK in getattr(module, "__dict__", {})}


def _contents() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the program's modules and classes with their data."""
    for module in _modules().values():
        yield module, _data(module)
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield value, _data(value)


def _data(owner: Any) -> dict[str, Any]:
    """Return what differs between processes: not what is code."""
    has_code = isinstance(owner, type)
    items = ((name, value) for name, value in vars(owner).items() if not name.startswith("__"))
    return {name: value for name, value in items if not (has_code and hasattr(value, "__get__"))}


def shared_tensors() -> dict[int, Any]:
    """Return the tensors that processes share, as copies of themselves."""
    torch = sys.modules.get("torch")
    tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)] if torch is not None else []
    return {id(each): each for each in tensors if each.is_shared()}


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy; the value itself where it cannot be copied."""
    try:
        if isinstance(value, FunctionType) and value.__closure__:
            cells = tuple(CellType(copied(each.cell_contents, memo)) for each in value.__closure__)
            return FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        return copy.deepcopy(value, memo)
    except Exception:  # whatever the program's own methods of copying raise
        return value
