"""YAML of plain data: mappings, lists, texts, whole numbers and truth values.

Any text comes back as it was: what could be read as something else is quoted, and a text of several lines becomes a
literal block where that keeps it exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "Mapping[str, Value] | Sequence[Value] | str | int | bool"

#: Words that are texts to every reader; all others are quoted. A digit in front could begin a number or a date, but
#: for an amount such as 10Gi.
PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*([ :][A-Za-z0-9_./-]+)*|[0-9]+Gi")
#: What readers of YAML 1.1 or 1.2 take for something other than a text.
NOT_TEXTS = {"y", "yes", "n", "no", "true", "false", "on", "off", "null", "~"}


def documents(values: Sequence[Value], comment: Sequence[str] = ()) -> str:
    """Return several documents as one text, below lines of comment."""
    head = "".join(f"# {line}\n" for line in comment)
    return head + "---\n".join("\n".join(_lines(value)) + "\n" for value in values)


def _lines(value: Value) -> list[str]:
    """Return the lines of a mapping or a list that is not empty, or the one line of anything else."""
    if isinstance(value, Mapping) and value:
        return [line for key, part in value.items() for line in _entry(f"{_text(key)}:", part)]
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [line for part in value for line in _item(part)]
    return [_scalar(value)]


def _entry(key: str, part: Value) -> list[str]:
    if isinstance(part, str) and _fits_a_block(part):
        return [f"{key} |", *map(_indented, part[:-1].split("\n"))]
    if isinstance(part, str) or not isinstance(part, Mapping | Sequence) or not part:
        return [f"{key} {_scalar(part)}"]
    return [key, *map(_indented, _lines(part))]


def _item(part: Value) -> list[str]:
    if isinstance(part, str) and _fits_a_block(part):
        return _entry("-", part)
    first, *rest = _lines(part)
    return [f"- {first}", *map(_indented, rest)]


def _indented(line: str) -> str:
    return f"  {line}" if line else ""


def _fits_a_block(text: str) -> bool:
    """Whether a literal block holds the text exactly: it ends with one line break and begins without a space."""
    lines = text.split("\n")
    return (
        len(lines) > 1
        and lines[-1] == ""
        and lines[-2] != ""
        and lines[0][:1] not in ("", " ")
        and all(line.isprintable() for line in lines)
    )


def _scalar(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    return "{}" if isinstance(value, Mapping) else "[]"


def _text(text: str) -> str:
    if PLAIN.fullmatch(text) and text.lower() not in NOT_TEXTS:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
