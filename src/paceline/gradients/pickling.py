"""Pickling of jobs and models for another process, with the user's functions and classes by value (cloudpickle).

PyTorch refuses to pickle a module with parametrizations (weight norm, spectral norm), whose class is generated. Here it
is pickled as a module of its original class, and gets a generated class again where it is loaded.
"""

from __future__ import annotations

import io
from typing import Any

import cloudpickle
from torch import nn
from torch.nn.utils import parametrize


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, nn.Module) and parametrize.is_parametrized(thing):
            return _parametrized, (type(thing).__bases__[0], dict(vars(thing)))
        return super().reducer_override(thing)


def _parametrized(usual: type[nn.Module], state: dict[str, Any]) -> nn.Module:
    module = usual.__new__(usual)
    vars(module).update(state)
    parametrize._inject_new_class(module)
    for name in module.parametrizations:  # type: ignore[union-attr]
        parametrize._inject_property(module, name)
    return module


def pack(thing: Any) -> bytes:
    """Return the pickled bytes."""
    file = io.BytesIO()
    _Packer(file).dump(thing)
    return file.getvalue()
