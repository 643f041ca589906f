"""JSON Schemas of the files in a run's folder, from the records that are written to them."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from paceline.runtime.runs.comparison import ComparisonRecord
from paceline.runtime.runs.live import LiveRecord
from paceline.runtime.runs.record import RunRecord
from paceline.runtime.runs.schema import INLINE, SCHEMA_VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: The record of each file.
FILES: dict[str, type] = {"run": RunRecord, "live": LiveRecord, "comparison": ComparisonRecord}
#: NaN and the infinities, which JSON does not have, are written as null.
PLAIN: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},
    str: {"type": "string"},
}


def json_schema(name: str) -> dict[str, Any]:
    """Return the schema of run.json, live.json or comparison.json, by its name without the ending."""
    return {"$schema": DIALECT, "title": f"{name}.json, schema version {SCHEMA_VERSION}", **_of(FILES[name])}


def _of(kind: Any) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if each is types.NoneType else _of(each) for each in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    if origin is tuple and arguments[-1] is not ...:
        return _positions(arguments)
    if origin is not None:
        return {"type": "array", "items": _of(arguments[0])}
    if is_dataclass(kind):
        return _record(kind)
    if hasattr(kind, "_fields"):  # a NamedTuple is written as a list
        return _positions(tuple(get_type_hints(kind).values()))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [each.value for each in kind]}
    return PLAIN.get(kind, {})


def _record(kind: Any) -> dict[str, Any]:
    """Every field is written; a reader may meet others, of a newer version."""
    hints = get_type_hints(kind)
    entries = {each.name: _of(hints[each.name]) for each in fields(kind) if each.metadata != INLINE}
    schema: dict[str, Any] = {"type": "object", "properties": entries, "required": [*entries]}
    if kind.__doc__:
        schema["description"] = kind.__doc__.partition("\n")[0]
    return schema


def _positions(kinds: tuple[Any, ...]) -> dict[str, Any]:
    count = len(kinds)
    return {"type": "array", "prefixItems": [_of(each) for each in kinds], "minItems": count, "maxItems": count}
