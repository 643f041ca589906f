"""The state of a trial between two legs, as a file of safetensors: reading one runs no code.

Its tensors and arrays have numbers. What is around them is JSON in the file's metadata: a number, a text, true, false
or null stands for itself, and a list with a word first for anything else.

    ["dict", [[key, value], ...]]   ["list", [...]]   ["tuple", [...]]   ["bytes", "hexadecimal"]
    ["tensor", "number"]   ["array", "number"]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from paceline.errors import TuningError

SUFFIX = ".safetensors"
#: What states were before: pickles. They are not read.
OLD_SUFFIX = ".state"
KEY = "paceline"
ALLOWED = "tensors, NumPy arrays, numbers, texts, bytes, None, and lists, tuples and dictionaries of these"


def state_file(states: Path, trial: int, step: int) -> Path:
    """Return the file with the state of a trial after a step."""
    return states / f"{trial}-{step}{SUFFIX}"


def write_state(file: Path, state: Any) -> None:
    """Replace a file by a state.

    Raises:
        TuningError: it consists of something else than plain values, tensors and arrays.
    """
    blobs: dict[str, Any] = {}
    metadata = {KEY: json.dumps(_described(state, blobs, "state"))}
    try:
        content = _serialized(blobs, metadata)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:  # a type of numbers that safetensors lacks
        raise TuningError(f"the state of a trial cannot be written as safetensors: {error}") from error
    # A worker that outlived a killed tuner for a moment may be writing the same state: each has a draft of its own.
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_bytes(content)
    os.replace(draft, file)


def read_state(file: Path) -> Any:
    """Return what was written.

    Raises:
        TuningError: the file is damaged.
    """
    content = file.read_bytes()
    try:
        size = int.from_bytes(content[:8], "little")
        tree = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][KEY])
        return _built(tree, _blobs(content, tree))
    except Exception as error:  # safetensors raises its own kinds
        why = f"{type(error).__name__}: {error}"
        raise TuningError(f"the state {file} is damaged: {why}; begin a new tuning") from error


def _serialized(blobs: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """Return the file's content. A state without tensors is written without importing PyTorch, which takes seconds."""
    if all(type(blob).__module__ == "numpy" for blob in blobs.values()):
        from safetensors.numpy import save as save_arrays

        return save_arrays(blobs, metadata)
    import torch
    from safetensors.torch import save

    return save({k: v if isinstance(v, torch.Tensor) else torch.from_numpy(v) for k, v in blobs.items()}, metadata)


def _blobs(content: bytes, tree: Any) -> Any:
    """Return tensors or arrays by their numbers, without PyTorch, too, if there are no tensors."""
    if '["tensor"' not in json.dumps(tree):
        from safetensors.numpy import load as load_arrays

        return load_arrays(content)
    from safetensors.torch import load

    return load(content)


def _described(value: Any, blobs: dict[str, Any], where: str) -> Any:
    """Return what JSON has of a value; tensors and arrays are put into `blobs`."""
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return ["dict", [[_key(k, where), _described(v, blobs, f"{where}[{k!r:.40}]")] for k, v in value.items()]]
    if isinstance(value, list | tuple):
        word = "list" if isinstance(value, list) else "tuple"
        return [word, [_described(part, blobs, f"{where}[{n}]") for n, part in enumerate(value)]]
    if isinstance(value, bytes | bytearray):
        return ["bytes", bytes(value).hex()]
    if (blob := _blob(value)) is None:
        raise TuningError(
            f"trial.save: {where} is a {type(value).__name__}; a state consists of {ALLOWED}. Save what the object's "
            "state_dict() or the like returns"
        )
    number = str(len(blobs))
    blobs[number] = blob
    return ["array" if type(blob).__module__ == "numpy" else "tensor", number]


def _key(key: Any, where: str) -> Any:
    if key is not None and type(key) not in (bool, int, float, str):
        raise TuningError(f"trial.save: {where} has a key {key!r:.40}; keys are numbers or texts")
    return key


def _blob(value: Any) -> Any:
    """Return a copy of a tensor or an array as safetensors takes it; None of what is neither."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")  # what was not imported has no objects
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf":
        return value.astype(value.dtype.newbyteorder("="), order="C")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return None


def _built(tree: Any, blobs: Any) -> Any:
    if not isinstance(tree, list):
        return tree
    word, content = tree
    if word == "dict":
        return {key: _built(value, blobs) for key, value in content}
    if word in ("list", "tuple"):
        parts = [_built(part, blobs) for part in content]
        return parts if word == "list" else tuple(parts)
    if word == "bytes":
        return bytes.fromhex(content)
    if word not in ("array", "tensor"):
        raise ValueError(f"{word!r:.40} stands for nothing")
    blob = blobs[content]
    if word == "array":
        return blob if type(blob).__module__ == "numpy" else blob.numpy()
    return blob
