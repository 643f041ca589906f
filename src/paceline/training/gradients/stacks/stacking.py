"""Which jobs can be trained in one vectorised pass: those that differ in data only, not in what is computed."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Agenda
from paceline.training.data.opening import open_source
from paceline.training.data.order import Order
from paceline.training.data.source import TensorSource
from paceline.training.jobs.job import Job

# --- The members of a stack: jobs of one shape on the same samples, each with its own module and order of samples -----


class Members:
    """Members that have all made the same number of updates; a stack says how they are trained."""

    def __init__(self, jobs: Sequence[Job], source: TensorSource, agenda: Agenda) -> None:
        self.x, self.y = source.tensors
        self.agenda = agenda
        #: Updates that every member has made.
        self.updates = 0
        self.jobs = list(jobs)
        self.modules = [job.make_model().train() for job in jobs]
        self.orders = [Order(len(source), job.seed, job.shuffle) for job in jobs]

    def choose(self, places: Sequence[int]) -> None:
        """Keep only the members at these places."""
        self.jobs = [self.jobs[place] for place in places]
        self.modules = [self.modules[place] for place in places]
        self.orders = [self.orders[place] for place in places]


# --- What a module or a function computes besides its tensors, as a text: equal texts compute the same ----------------
# Of modules it is the class and the attributes, of functions the code and what it closes over. An object of which
# nothing is known is equal to itself alone.

PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
DEEPEST = 6  # objects within objects that are looked into
OWN = frozenset(nn.Module().__dict__)  # what every module has


def of_module(module: nn.Module) -> str:
    """Return what a module computes; the rates of its layers of dropout may differ."""
    return repr([(name, _part(part)) for name, part in module.named_modules()])


def _part(part: nn.Module) -> list[Any]:
    """Return a module's class and attributes, without its tensors and its modules."""
    theirs = type(part).__module__.startswith("torch.")
    left_out = {"p"} if isinstance(part, nn.modules.dropout._DropoutNd) else set[str]()
    hooks = [name for name in OWN if name.endswith("hooks") and getattr(part, name)]
    attributes = {
        name: canonical(value)
        for name, value in vars(part).items()
        if name not in OWN and name not in left_out and not (theirs and name.startswith("_"))
    }
    return [canonical(type(part)), attributes, [(name, id(part)) for name in hooks]]


def canonical(value: Any, depth: int = 0) -> Any:
    """Return a value as something whose repr is the same for equal values."""
    if isinstance(value, PLAIN_TYPES):
        return value
    if isinstance(value, Tensor):
        numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return [tuple(value.shape), str(value.dtype), hashlib.sha256(numbers).hexdigest()]
    if depth > DEEPEST or isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
        return [getattr(value, "__qualname__", type(value).__qualname__), id(value)]
    if isinstance(value, Mapping):
        return [[canonical(key, depth + 1), canonical(part, depth + 1)] for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [canonical(part, depth + 1) for part in value]
    if isinstance(value, functools.partial):
        return [canonical(part, depth + 1) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, types.FunctionType):
        return _function(value, depth)
    if isinstance(value, types.MethodType):
        return [canonical(value.__func__, depth + 1), canonical(value.__self__, depth + 1)]
    if isinstance(value, nn.Module):
        return [of_module(value), [canonical(tensor) for tensor in value.state_dict().values()]]
    if type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
        return [canonical(type(value)), canonical(vars(value), depth + 1)]
    return [type(value).__qualname__, id(value)]


def _function(value: types.FunctionType, depth: int) -> list[Any]:
    code = value.__code__
    constants = [part.co_code if isinstance(part, types.CodeType) else part for part in code.co_consts]
    closure = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
    return [
        value.__module__,
        value.__qualname__,
        code.co_code,
        repr(constants),
        code.co_names,
        *(canonical(part, depth + 1) for part in (value.__defaults__, value.__kwdefaults__, closure)),
    ]


class CannotStack(Exception):
    """A job that has to be trained separately; the message says why."""


#: Fields of a job that a stack does not know, and the value that asks for nothing.
PLAIN: dict[str, Any] = {
    "lr_scheduler": None,
    "gradient_clip_norm": None,
    "accumulate_grad_batches": 1,
    "batch_transform": None,
    "step": None,
    "loss_denominator": None,
    "precision": "32-true",
}


def shape_of(job: Job) -> tuple[str, TensorSource]:
    """Return what the members of a stack have in common, as a text, and the job's data. Raise CannotStack."""
    for field, plain in PLAIN.items():
        if getattr(job, field) != plain:
            raise CannotStack(f"{field}= is not stacked")
    if job.on_nan == "skip":
        raise CannotStack("on_nan='skip' is not stacked")
    source = open_source(job.data, job.seed)
    if not isinstance(source, TensorSource) or len(source.tensors) != 2:
        raise CannotStack("the data are not a pair of tensors")
    with torch.random.fork_rng(devices=[]):
        module = job.make_model()
        optimizer = job.make_optimizer(module, list(module.parameters()))
    groups = [len(group["params"]) for group in optimizer.param_groups]
    flags = [{k: v for k, v in group.items() if isinstance(v, bool | str)} for group in optimizer.param_groups]
    parts = (
        _structure(module),
        type(optimizer).__name__,
        groups,
        flags,
        canonical(job.loss),
        job.batch_size,
        job.device,
        source.fingerprint(),
    )
    return repr(parts), source


def _structure(module: nn.Module) -> list[Any]:
    """Return what the module computes, and the shapes of its tensors; rates of dropout may differ."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [of_module(module), [(name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in tensors]]
