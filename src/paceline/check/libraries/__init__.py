"""What calls of libraries do, as data: each file here maps canonical names of functions to what they do.

A project adds its own with `libraries = ["waits.json"]` in `[tool.paceline.check]`: an object of the same form.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from paceline.errors import UsageError

#: Canonical name -> what the call waits for; what a project adds comes on top of what is shipped.
_added: dict[str, str] = {}


@cache
def _shipped(table: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((Path(__file__).parent / f"{table}.json").read_text())
    return found


def blocks(name: str) -> str:
    """What a function of a library waits for while it blocks its thread; empty when nothing is known of it."""
    return _added.get(name) or _shipped("blocking").get(name, "")


def returns(name: str) -> str:
    """The class of the object that a function of a library returns; empty when nothing is known of it."""
    return _shipped("returns").get(name, "")


def add(files: tuple[str, ...]) -> None:
    """Read a project's own summaries, in place of those read before."""
    _added.clear()
    for file in files:
        try:
            table = json.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{file} cannot be read as summaries of a library: {error}") from None
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            raise UsageError(f'{file} is not an object such as {{"package.function": "waits for a reply"}}')
        _added.update(table)
