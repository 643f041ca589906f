"""Typed records to JSON and back: files are replaced atomically, and those of a newer schema are refused.

A record is a dataclass or a NamedTuple. A key that a file lacks takes the field's default, so that a new field does not
make old files unreadable; a key that no field has is ignored. A value of another type than the field's is an error.
`RENAMED` of a record's class maps old names of its fields to their new ones.
"""

from __future__ import annotations

import json
import math
import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.errors import RunFolderError

T = TypeVar("T")

#: The version that this code writes into run.json, live.json, comparison.json and trace.arrow. Files without one are
#: of version 1. Increase it when a reader of the version before would misread a file, not when a field is added.
SCHEMA_VERSION = 3
#: Metadata of a dictionary whose entries are written beside the other fields, such as metrics with the user's names.
INLINE = {"inline": True}


class StrEnum(str, Enum):
    """Words that are written as they are; Python has this class from 3.11 on."""

    __str__ = str.__str__


def check_version(version: object, file: Path | str) -> None:
    """Raise RunFolderError if a file's schema version is newer than this code."""
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RunFolderError(
            f"{file} has schema version {version}; this paceline reads up to {SCHEMA_VERSION}; install a newer paceline"
        )


def read_as(kind: type[T], file: Path) -> T:
    """Read a record from a JSON file of any schema version up to this code's."""
    value = read_json(file)
    check_version(value.setdefault("schema_version", 1), file)
    try:
        return from_dict(kind, value)
    except ValueError as error:
        raise RunFolderError(f"{file} is damaged: {error}") from None


def to_dict(value: Any) -> Any:
    """Convert a record, and the records in it, to dictionaries and lists. NaN stays NaN."""
    if is_dataclass(value) and not isinstance(value, type):
        document: dict[str, Any] = {}
        for each in fields(value):
            part = to_dict(getattr(value, each.name))
            document |= part if each.metadata == INLINE else {each.name: part}
        return document
    if isinstance(value, dict):
        return {key: to_dict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_dict(part) for part in value]
    return value.value if isinstance(value, Enum) else value


def from_dict(kind: type[T], value: Any, where: str = "") -> T:
    """Make a record of what `to_dict` gave; ValueError names the first entry that does not fit, such as job.seed."""
    return _convert(kind, value, where)  # type: ignore[no-any-return]


def _convert(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (only,) = (each for each in arguments if each is not types.NoneType)
        return None if value is None else _convert(only, value, where)
    if origin is not None:
        return _container(origin, arguments, value, where)
    if is_dataclass(kind):
        return _record(kind, value, where)
    if hasattr(kind, "_fields"):
        hints = list(_hints(kind).values())
        return kind(*(_convert(hint, part, where) for hint, part in zip(hints, value, strict=True)))
    return _plain(kind, value, where)


def _container(origin: Callable[..., Any], arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if origin is dict:
        key, part = arguments
        return {key(k): _convert(part, v, f"{where}.{k}") for k, v in _checked(dict, value, where).items()}
    parts = _checked(list, value, where)
    if origin is not tuple or arguments[-1] is ...:
        return origin(_convert(arguments[0], part, where) for part in parts)
    return tuple(_convert(each, part, where) for each, part in zip(arguments, parts, strict=True))


def _record(kind: Any, value: Any, where: str) -> Any:
    renamed: dict[str, str] = getattr(kind, "RENAMED", {})
    entries = {renamed.get(key, key): part for key, part in _checked(dict, value, where).items()}
    hints = _hints(kind)
    arguments: dict[str, Any] = {}
    inline = next((each for each in fields(kind) if each.metadata == INLINE), None)
    for each in fields(kind):
        name = f"{where}.{each.name}" if where else each.name
        if each.name in entries:
            arguments[each.name] = _convert(hints[each.name], entries.pop(each.name), name)
        elif each is not inline and not _has_default(each):
            raise ValueError(f"{name} is missing")
    if inline is not None:
        arguments[inline.name] = _metrics(entries)
    return kind(**arguments)


def _metrics(entries: dict[str, Any]) -> dict[str, float]:
    """The entries that are numbers; others are of a field that this code does not know."""
    return {key: _plain(float, value, key) for key, value in entries.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _has_default(each: Field[Any]) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


def _plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float:
        # JSON has no NaN: it was written as null.
        return math.nan if value is None else _checked((int, float), value, where)
    return kind(value) if issubclass(kind, Enum) else _checked(kind, value, where)


def _checked(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        expected = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"{where or 'the file'} is {value!r}, which is not of type {expected}")
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


# JSON files as every reader takes them: replaced atomically, and without NaN.


def strict(value: Any) -> Any:
    """Replace NaN and the infinities, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {key: strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(file: Path, value: Any) -> None:
    """Replace the file atomically: a concurrent reader finds either the old content or the new one, whole."""
    with draft_of(file) as draft:
        draft.write_text(json_text(value))


def json_text(value: Any) -> str:
    """Return what a file holds."""
    return json.dumps(strict(value), indent=1, default=str, allow_nan=False) + "\n"


@contextmanager
def draft_of(file: Path, name: str = "new") -> Iterator[Path]:
    """Yield a path that replaces the file at the end of the block; nothing is left of it if the block fails."""
    draft = file.with_name(f"{file.name}.{name}")
    try:
        yield draft
        os.replace(draft, file)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def read_json(file: Path) -> dict[str, Any]:
    """Read one JSON object; RunFolderError if the file holds anything else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError(f"{file} is damaged: {error}; give another folder") from None
    if not isinstance(content, dict):
        raise RunFolderError(f"{file} is damaged: it holds a {type(content).__name__}, no object; give another folder")
    return content
