"""Which calls are collectives, which every rank of a group must make.

A collective is known by its canonical name (`torch.distributed.barrier`), by the class of its object, whatever its name
(`self.acc = Accelerator()`), by a base class of a class of this file, or else by the usual name of the object. Which
functions of a library are collectives is data in libraries/collectives.json.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, keyword, short_name
from paceline.concurrency.check.values.calls import constructor, type_name
from paceline.concurrency.check.values.module import Module

_BARRIER = re.compile(r"(ddp|dist|distributed|torch|global|mpi|fsdp|safe|maybe|process|rank|world)_barrier")
_LOGS = ("log", "log_dict")  # collectives only with sync_dist=True
#: The group of an exchange that every rank makes, each with other ones.
NEIGHBOURS = "its neighbours"
#: The group of the ranks that take a branch, where that makes one of exactly these.
OF_BRANCH = "the ranks of this branch"


class Collective(NamedTuple):
    """A call that every rank of a group must make."""

    name: str
    call: ast.Call
    group: str  # as written; empty for the default group
    root: str  # as written; empty when there is none


def collective(call: ast.Call, fn: Function, module: Module) -> Collective | None:
    """The collective that a call is; None when it is none."""
    function = call.func
    name = _by_name(module.canonical(function))
    owned, construction = False, None  # by the class of its object, which stands for all ranks
    if (
        name is None
        and isinstance(function, ast.Name)
        and function.id in catalogue.COLLECTIVE_NAMES
        and function.id in module.imports
    ):
        name = function.id
    if name is None and _BARRIER.fullmatch(short_name(function)) and dotted(function).split(".")[0] in module.imports:
        name = "barrier"  # a helper of another file: `distributed.ddp_barrier()`
    if name is None and isinstance(function, ast.Attribute):
        name = _by_class(function, fn, module)
        owned = name is not None
        construction = constructor(function.value, fn, module) if owned else None
        name = name or _by_object(function, fn, module)
    if name is None and module.wrappers.shard and _is_wrapped(function, fn, module, ".FullyShardedDataParallel"):
        name = "forward"
    if name is None and module.wrappers.normalise and _is_wrapped(function, fn, module, ".DistributedDataParallel"):
        name = "forward"  # which sends the running means of rank 0 to all
    if name in _LOGS and not _truly(keyword(call, "sync_dist")):
        return None
    if name is None or keyword(call, "no_dist") is not None:
        return None
    group = _group_of(call) or _group_of(construction)
    if name == "sendrecv" or _of_other_programs(call, module):
        group = NEIGHBOURS
    elif (
        not group
        and not owned
        and isinstance(function, ast.Attribute)
        and name in catalogue.COLLECTIVE_NAMES
        and name not in catalogue.OF_TENSORS
        and not _for_all_ranks(function, fn, module)
    ):
        group = written(function.value)  # a collective of a communicator of its own
    root = keyword(call, "src") or keyword(call, "root") or keyword(call, "dst")
    if root is None and name in ("broadcast", "reduce", "bcast") and len(call.args) > 1:
        root = call.args[1]
    return Collective(name, call, group, written(root))


def _group_of(call: ast.Call | None) -> str:
    """The group that a collective, or what makes its object, is given, as it is written; empty for all ranks."""
    if call is None:
        return ""
    strategy = keyword(call, "strategy")  # of Lightning
    inner = _group_of(strategy) if isinstance(strategy, ast.Call) else ""
    return written(keyword(call, "group") or keyword(call, "process_group")) or inner


def _of_other_programs(call: ast.Call, module: Module) -> bool:
    """Whether a collective of Ray has a group of its own, of which a rank of PyTorch may be the only member here."""
    of_ray = module.canonical(call.func).startswith("ray.util.collective.")
    return of_ray and isinstance(keyword(call, "group_name", 3), ast.Attribute | ast.Name)


def _is_wrapped(node: ast.expr, fn: Function, module: Module, wrapper: str, depth: int = 0) -> bool:
    """Whether this is a model in a wrapper that lets all ranks take part when it runs."""
    if depth > DEPTH or not isinstance(node, ast.Name | ast.Attribute):
        return False
    if type_name(node, fn, module).endswith(wrapper):
        return True
    named = dotted(node)
    shards = wrapper == ".FullyShardedDataParallel"
    if shards and any(short_name(c.func) == "fully_shard" and c.args and dotted(c.args[0]) == named for c in fn.calls):
        return True
    arguments = module.objects.arguments(fn, named) if named in fn.parameters and named not in fn.bound else ()
    return any(_is_wrapped(argument.value, argument.caller, module, wrapper, depth + 1) for argument in arguments)


DEPTH = 3  # calls through which a model is followed


def _for_all_ranks(function: ast.Attribute, fn: Function, module: Module) -> bool:
    """Whether a module or object stands for all ranks rather than for a group."""
    owner = short_name(function.value).lower().strip("_")
    if owner in (*catalogue.OBJECT_COLLECTIVES, *catalogue.WORLD_OBJECTS, fn.self_name) or owner.endswith("utils"):
        return True
    named = _by_name(module.canonical(function)) is not None
    return named or dotted(function.value).split(".")[0] in module.imports


def _by_name(name: str) -> str | None:
    """The collective with this canonical name."""
    collective_name = catalogue.COLLECTIVES.get(name)
    if collective_name is not None:
        return collective_name
    head, _, short = name.rpartition(".")
    if short in libraries.collectives(head):
        return short
    if head.split(".")[-1] in ("distributed", "dist") and not head.startswith(("self", "scipy", "spatial")):
        return catalogue.COLLECTIVES.get("torch.distributed." + short)
    return None


def _by_class(function: ast.Attribute, fn: Function, module: Module) -> str | None:
    """The collective that is a method of an object of a library, or of a class of this file that inherits from one."""
    if not any(function.attr in methods for methods in libraries.all_collectives().values()):
        return None
    cls = module.type_of(function.value, fn)
    if cls is None:
        class_names = [type_name(function.value, fn, module)]
    else:
        class_names = [] if cls.method(function.attr) else [base for c in cls.ancestry for base in c.bases]
    is_collective = any(function.attr in libraries.collectives(name) for name in class_names)
    return function.attr if is_collective and not _computes_alone(function, fn, module) else None


def _computes_alone(function: ast.Attribute, fn: Function, module: Module) -> bool:
    """Whether a metric was made so that it is computed by each rank, or by a group, or so that this is not known."""
    construction = constructor(function.value, fn, module) if function.attr == "compute" else None
    keywords = construction.keywords if construction is not None else ()
    return any(
        k.arg in (None, "process_group") or (k.arg == "sync_on_compute" and not _truly(k.value)) for k in keywords
    )


def _by_object(function: ast.Attribute, fn: Function, module: Module) -> str | None:
    """The collective that is a method of an object with a usual name, such as `comm` or `accelerator`."""
    owner = short_name(function.value).lower()
    if "mpi4py" in " ".join(module.imports.values()):
        comm = dotted(function.value)
        if comm.endswith("COMM_WORLD") or owner == "comm" or owner.endswith("comm") or owner.startswith("comm"):
            return catalogue.MPI_COLLECTIVES.get(function.attr)
        if function.attr in catalogue.MPI_SHARED:
            return function.attr
    if function.attr in catalogue.OBJECT_COLLECTIVES.get(owner.strip("_"), ()):
        return function.attr
    if function.attr == "backward" and module.wrappers.average(fn):
        of_loss = dotted(function).partition(".")[0] not in module.imports  # rather than the function of a library
        return "backward" if of_loss or module.canonical(function) == "torch.autograd.backward" else None
    if function.attr == "state_dict" and "model" in owner and any("FullyShard" in n for n in module.imports.values()):
        return "state_dict"  # gathers the shards of all ranks
    return function.attr if function.attr in catalogue.COLLECTIVE_NAMES else None


def _truly(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def written(node: ast.expr | None) -> str:
    """An argument as it is written; empty when there is none."""
    return "" if node is None or (isinstance(node, ast.Constant) and node.value is None) else ast.unparse(node)
