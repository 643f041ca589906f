"""Which rank of how many a process is, as PyTorch's default process group in its memory says it.

A process need not have been told its rank when it was started: `torch.multiprocessing.spawn` passes it as an argument,
and notebook launchers set the environment afterwards. Every backend, of PyTorch or not, has such a group.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple

from paceline.concurrency.watcher.processes.objects import CodeFrame, Objects

_MODULE = "torch.distributed.distributed_c10d"
#: Where the C++ object begins in one of pybind11; where its rank lies, and after it its size: behind the store and
#: the counters of references, which are two halves of a word or two words.
_VALUE, _RANKS = 16, (24, 32)
#: The files whose `_wrap` runs what a launcher starts in a process of its own, and the variable that has its number.
_STARTERS = {
    "/torch/multiprocessing/spawn.py": "i",
    "/torch/distributed/elastic/multiprocessing/api.py": "local_rank",
}
_MOST_PROCESSES = 1024


class Standing(NamedTuple):
    """Which rank of how many a process is."""

    rank: int
    world_size: int = 0  # 0 where only the rank is known


#: By process: how many modules it had, and where the globals of the module are, so that they are searched for rarely.
_globals: OrderedDict[tuple[int, str], tuple[int, int]] = OrderedDict()


def of_group(objects: Objects, modules: int, process: tuple[int, str]) -> Standing | None:
    """Return the standing of a process in its default process group; None if it has none.

    Args:
        objects: The interpreter.
        modules: The dictionary of the interpreter's modules.
        process: Its number, and where its image begins.
    """
    namespace = _globals_of(objects, modules, process)
    if not namespace:
        return None
    variables = objects.items(namespace)
    group = objects.attributes(variables["_world"]).get("_default_pg", 0) if "_world" in variables else 0
    ranks = dict(objects.pairs(variables.get("_pg_group_ranks", 0))).get(group, 0) if group else 0
    if not ranks or not objects.type_of(group).endswith("ProcessGroup"):
        return None
    value, size = objects.memory.word(group + _VALUE), objects.length(ranks)
    pairs = (tuple(objects.memory.integer(value + at + half) for half in (0, 4)) for at in _RANKS)
    return next((Standing(rank, size) for rank, other in pairs if other == size and 0 <= rank < size), None)


def of_frames(objects: Objects, frames: list[CodeFrame]) -> Standing | None:
    """Return the standing that local variables of a thread name, where there is no group yet; None if none does."""
    rank, size = (_number(objects, frames, name) for name in ("rank", "world_size"))
    if rank < 0:
        started = [f for f in frames if f.code.name == "_wrap"]
        numbers = [_number(objects, [f], name) for f in started for file, name in _STARTERS.items() if _is_in(f, file)]
        rank = next((each for each in numbers if each >= 0), -1)
    return Standing(rank, max(size, 0)) if rank >= 0 else None


def _globals_of(objects: Objects, modules: int, process: tuple[int, str]) -> int:
    count = objects.length(modules)
    before, namespace = _globals.get(process, (-1, 0))
    if not namespace and before != count:
        module = objects.items(modules).get(_MODULE, 0)
        namespace = objects.memory.word(module + 16) if module else 0
        _globals[process] = count, namespace
        if len(_globals) > _MOST_PROCESSES:
            _globals.popitem(last=False)
    return namespace


def _is_in(frame: CodeFrame, file: str) -> bool:
    return frame.code.file.endswith(file)


def _number(objects: Objects, frames: list[CodeFrame], name: str) -> int:
    """Return the number in a local variable of the innermost frame that has one; -1 if none has."""
    for frame in frames:
        with suppress(OSError):
            if (value := objects.number(objects.local(frame, name))) >= 0:
                return value
    return -1
