"""The rules, by family: a folder each, with a row per rule in its `rules.toml`, and files for what no solver finds.

A row that has duties is solved by `typestates`. For anything else a row names the file with the function of its name.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.rows import forms_of, read
from paceline.concurrency.check.rules.rule import Rule
from paceline.concurrency.check.rules.typestates import duties
from paceline.concurrency.check.threads.sharing import THREAD_WORDS


class Family(NamedTuple):
    """The rules about one subject."""

    package: str
    title: str
    rules: tuple[Rule, ...]


#: Words by which a row names a whole group of them.
_GROUPS = {"<threads>": THREAD_WORDS, "<libraries>": libraries.threaded()}


def _family(name: str) -> Family:
    folder = Path(__file__).parent / name
    rows = read(folder / "rules.toml")
    return Family(
        f"{__name__}.{name}", rows.pop("title"), tuple(_rule(folder, rule, row) for rule, row in rows.items())
    )


def _rule(folder: Path, name: str, row: dict[str, Any]) -> Rule:
    by = import_module(f"{__name__}.{folder.name}.{row['found_by']}") if "found_by" in row else None
    finds = [getattr(by, name.replace("-", "_"))] if by is not None else []
    finds += duties(row.get("duty", ()))
    needs = tuple(word for given in row.get("needs", ()) for word in _GROUPS.get(given, (given,)))
    bad, good = (_side(row["example"], other) for other in "+-")
    return Rule(row["code"], name, row["summary"], row["why"], tuple(finds), bad, good, forms_of(row), needs)


def _side(example: str, other: str) -> str:
    """The broken or the repaired program of an example, which is the difference from one to the other."""
    return "".join(f"{line[2:]}\n" for line in example.splitlines() if not line.startswith(other))


FAMILIES = tuple(
    map(_family, ("locks", "queues", "events", "processes", "threads", "coroutines", "races", "collectives"))
)
RULES: dict[str, Rule] = dict(sorted((rule.code, rule) for family in FAMILIES for rule in family.rules))
