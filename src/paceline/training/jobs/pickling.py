"""Jobs and models for another process, with the user's code by value, and copies of what has a state here.

PyTorch refuses to pickle a module with parametrizations (weight norm, spectral norm), whose class is generated. Here it
is pickled as a module of its original class, and gets a generated class again where it is loaded.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
import numpy as np
from torch import Tensor, nn
from torch.nn.utils import parametrize

from paceline.errors import SecurityError
from paceline.names import visible

if TYPE_CHECKING:
    from paceline.training.jobs.job import Job


# Copies of objects that a training calls and that may have a state, so that the caller's never change.
#
# A loss that fades, an augmentation or a sampler with a generator of its own is then the same at the start of every
# training, replay and resumed run.

T = TypeVar("T")
#: Fields of a job that are called while it is trained.
CALLED = ("loss", "step", "loss_denominator", "batch_transform")


def separate(value: T, data: Iterable[Any] = ()) -> T:
    """Return a copy of an object, which shares its `data`; the object itself where it cannot be copied."""
    try:
        return copy.deepcopy(value, {id(each): each for each in data})
    except Exception:  # an open file, a lock: whatever a class refuses
        return value


def with_state_of(job: Job, users_job: Job) -> Job:
    """Return a job with copies of the functions of the user's job, in the state that they have there."""
    return job.with_(**{name: separate(getattr(users_job, name)) for name in CALLED})


def bulk(value: Any) -> Iterator[Any]:
    """Yield what an object's attributes hold of data: tensors, arrays and data sets, which have no state."""
    for attribute in vars(value).values() if hasattr(value, "__dict__") else ():
        parts = attribute.values() if isinstance(attribute, Mapping) else attribute
        for part in (attribute, *(parts if isinstance(parts, list | tuple) else ())):
            by_number = hasattr(part, "__getitem__") and hasattr(part, "__len__")
            if isinstance(part, Tensor | np.ndarray) or (by_number and not isinstance(part, list | Mapping)):
                yield part


# Files that run code when they are read: whose they are, and a line that says so before.


def announce_code(file: Path, code: str = "") -> None:
    """Say that reading a file runs the code in it; refuse one that another user could have written.

    Args:
        file: what is about to be read.
        code: what is run, where it is not the file itself.

    Raises:
        SecurityError: the file, or the folder in which it lies, is another user's, or all users may write to it.
    """
    user = os.geteuid()
    for each in (file.absolute().parent, file):
        status = each.stat()
        if status.st_uid != user:
            raise SecurityError(
                f"{each} belongs to another user (uid {status.st_uid}, and this process to uid {user}), and reading "
                f"{file.name} would run the code in it; if you trust it, copy the folder (cp -r): the copy is yours"
            )
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise SecurityError(
                f"every user of this machine may write to {each}, and reading {file.name} would run the code in it; "
                f"if you trust it, run `chmod o-w {each}`"
            )
    notice = f"paceline: runs the code in {code or file}: go on only where you trust it"
    print(visible(notice).replace("\n", "\\n"), file=sys.stderr, flush=True)


LARGE = 1 << 20  # bytes from which on a tensor may travel beside the pickle


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    #: Tensors that are left out of the pickle, where its reader is given them; None: none are.
    large: list[Tensor] | None = None

    def persistent_id(self, thing: Any) -> int | None:
        if self.large is None or type(thing) is not Tensor or thing.nbytes < LARGE or thing.device.type != "cpu":
            return None
        if thing.requires_grad or not thing.is_contiguous():
            return None
        place = next((n for n, other in enumerate(self.large) if other is thing), len(self.large))
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
