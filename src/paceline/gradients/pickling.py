"""Jobs and models as bytes for another process, functions and classes of the user's by value (cloudpickle).

PyTorch refuses to pickle a module with parametrizations (weight norm, spectral norm), whose class it has made up. Here
it goes as a module of the class that it was, and gets such a class again where it arrives.
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
    file = io.BytesIO()
    _Packer(file).dump(thing)
    return file.getvalue()
