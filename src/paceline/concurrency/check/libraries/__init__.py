"""What calls of libraries do, as data: each file here maps canonical names of functions to what they do.

Only collectives.json maps modules and classes to those of their functions that every rank must call.

A project adds its own with `libraries = ["waits.json"]` in `[tool.paceline.check]`: an object of the same form.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from paceline.errors import UsageError

#: Canonical name -> what the call waits for; what a project adds comes on top of what is shipped.
_added: dict[str, str] = {}


@cache
def _shipped(table: str, part: str = "") -> dict[str, str]:
    entries: dict[str, Any] = json.loads((Path(__file__).parent / f"{table}.json").read_text(encoding="utf-8"))
    return entries[part] if part else entries


def table(group: str) -> dict[str, Any]:
    """A group of names.json: names of functions, or parts of names, and what each of them means."""
    entries: dict[str, Any] = _shipped("names")[group]  # type: ignore[assignment]
    return entries


def words(group: str) -> tuple[str, ...]:
    """A group of names.json of which nothing more is said, in its order."""
    return tuple(_shipped("names")[group].split())


def names(group: str) -> frozenset[str]:
    """The same as a set."""
    return frozenset(words(group))


@cache
def all_collectives() -> dict[str, frozenset[str]]:
    """Module or class -> those of its functions that every rank must call."""
    return {owner: frozenset(names.split()) for owner, names in _shipped("collectives").items()}


def collectives(owner: str) -> frozenset[str]:
    """The functions of a module or class that every rank must call; `torchmetrics.*` is any class of a package."""
    by_owner = all_collectives()
    return by_owner.get(owner) or by_owner.get(f"{owner.partition('.')[0]}.*", frozenset())


def blocks(name: str) -> str:
    """What a function of a library waits for while it blocks its thread; empty when nothing is known of it."""
    return _added.get(name) or _shipped("blocking").get(name, "")


def returns(name: str) -> str:
    """The class of the object that a function of a library returns; empty when nothing is known of it."""
    return _shipped("returns").get(name, "")


def bound(name: str) -> str:
    """Which threads may use an object of a library: `maker` or `one` at a time; empty where any may."""
    return _shipped("bound").get(name, "")


def called_in_thread(name: str) -> str:
    """The arguments that a library runs in a thread of its own, with positions: `callback:2 errback`; empty if none."""
    return _shipped("threads", "called").get(name, "")


@cache
def takers() -> frozenset[str]:
    """The last parts of the names of all functions that run an argument in a thread of their own."""
    return frozenset(name.rpartition(".")[2] for name in _shipped("threads", "called"))


@cache
def threaded() -> tuple[str, ...]:
    """How files begin that import packages which run callbacks or methods in threads of their own."""
    parts = ("called", "bases", "attributes")
    names = {name.partition(".")[0] for part in parts for name in _shipped("threads", part)}
    return tuple(f"{word} {name}" for name in sorted(names) for word in ("import", "from"))


def run_in_thread(base: str) -> str:
    """A pattern of the methods of a subclass that a library runs in threads; ` *` after it: in several at once."""
    return _shipped("threads", "bases").get(base, "")


def assigned_for_thread(name: str) -> str:
    """A pattern of the attributes of an object whose functions a library runs in a thread of its own."""
    return _shipped("threads", "attributes").get(name, "")


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
