"""What a module or a function computes besides its tensors, as a text: equal texts compute the same.

Of modules it is the class and the attributes, of functions the code and what it closes over. An object of which nothing
is known is equal to itself alone.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
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
    if isinstance(value, PLAIN):
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
