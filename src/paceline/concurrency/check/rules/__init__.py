"""The rules, by family: a folder each, with a row per rule in its `rules.toml` and a file that finds it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.rule import Form, Rule
from paceline.concurrency.check.threads.sharing import THREAD_WORDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Family(NamedTuple):
    """The rules about one subject."""

    package: str
    title: str
    rules: tuple[Rule, ...]


#: Words by which a row names a whole group of them.
_GROUPS = {"<threads>": THREAD_WORDS, "<libraries>": libraries.threaded()}


def _family(name: str) -> Family:
    package = f"{__name__}.{name}"
    rows = tomllib.loads((Path(__file__).parent / name / "rules.toml").read_text(encoding="utf-8"))
    return Family(package, rows.pop("title"), tuple(_rule(package, rule, row) for rule, row in rows.items()))


def _rule(package: str, name: str, row: dict[str, Any]) -> Rule:
    find = import_module(f"{package}.{name.replace('-', '_')}").find
    forms = {
        form: Form(**{key: tuple(value) if isinstance(value, list) else value for key, value in sentences.items()})
        for form, sentences in row.items()
        if isinstance(sentences, dict)
    }
    needs = tuple(word for given in row.get("needs", ()) for word in _GROUPS.get(given, (given,)))
    bad, good = (_side(row["example"], other) for other in "+-")
    return Rule(row["code"], name, row["summary"], row["why"], find, bad, good, forms, needs)


def _side(example: str, other: str) -> str:
    """The broken or the repaired program of an example, which is the difference from one to the other."""
    return "".join(f"{line[2:]}\n" for line in example.splitlines() if not line.startswith(other))


FAMILIES = tuple(
    map(_family, ("locks", "queues", "events", "processes", "threads", "coroutines", "races", "collectives"))
)
RULES: dict[str, Rule] = dict(sorted((rule.code, rule) for family in FAMILIES for rule in family.rules))
