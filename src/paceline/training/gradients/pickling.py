"""Pickling of jobs and models for another process, with the user's functions and classes by value (cloudpickle).

PyTorch refuses to pickle a module with parametrizations (weight norm, spectral norm), whose class is generated. Here it
is pickled as a module of its original class, and gets a generated class again where it is loaded.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import cloudpickle
from torch import Tensor, nn
from torch.nn.utils import parametrize

LARGE = 1 << 20  # bytes from which on a tensor may travel beside the pickle


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    #: Tensors that are left out of the pickle, where its reader is given them; None: none are.
    large: list[Tensor] | None = None

    def persistent_id(self, thing: Any) -> int | None:
        if self.large is None or type(thing) is not Tensor or thing.nbytes < LARGE or thing.device.type != "cpu":
            return None
        if thing.requires_grad or not thing.is_contiguous():
            return None
        place = next((n for n, known in enumerate(self.large) if known is thing), len(self.large))
        if place == len(self.large):
            self.large.append(thing)
        return place

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


def pack(thing: Any, large: list[Tensor] | None = None) -> bytes:
    """Return the pickled bytes; large tensors are appended to `large` instead, if it is given."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.large = large
    packer.dump(thing)
    return file.getvalue()


class _Unpacker(pickle.Unpickler):
    large: Sequence[Tensor] = ()

    def persistent_load(self, place: int) -> Tensor:
        return self.large[place]


def unpack(packed: bytes, large: Sequence[Tensor] = ()) -> Any:
    """Return what was packed, with the large tensors that were left out."""
    unpacker = _Unpacker(io.BytesIO(packed))
    unpacker.large = large
    return unpacker.load()


def pack_program(thing: Any) -> bytes:
    """Return the pickled bytes for a program on another machine, which is to have this one's command line."""
    return pickle.dumps(sys.argv) + pack(thing)


def unpack_program(data: bytes) -> Any:
    """Take the command line of the program that has packed the bytes, and load what it packed."""
    parts = io.BytesIO(data)
    sys.argv = pickle.load(parts)  # first: what the thing needs is imported while it is loaded
    return pickle.load(parts)
