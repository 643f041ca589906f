"""Rows of rules in TOML: those of the checker, and those that a project adds for its own libraries."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from paceline.concurrency.check.rules.rule import Form, Rule, in_tuples
from paceline.concurrency.check.rules.typestates import duties
from paceline.errors import UsageError, suggest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The keys of a project's own rule, and whether it needs them.
OWN_KEYS = {
    "code": True, "name": True, "summary": True, "opens": True, "closes": True, "owes": False, "breach": False,
    "remedy": False,
}  # fmt: skip
_LISTS = ("opens", "closes", "owes", "breach")
_CODE = re.compile(r"PC9\d\d")


def read(file: Path) -> dict[str, Any]:
    """A file of rows."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def forms_of(row: Mapping[str, Any]) -> dict[str, Form]:
    """The forms of a rule, which are the tables in its row."""
    return {name: Form(**in_tuples(sentences)) for name, sentences in row.items() if isinstance(sentences, dict)}


def as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A project's own rows as text, which other processes and the cache are given."""
    return json.dumps(list(rows), sort_keys=True)


@cache
def own_rules(text: str) -> tuple[Rule, ...]:
    """The rules that a project has added, from its rows as text."""
    return tuple(_own_rule(row) for row in json.loads(text or "[]"))


def _own_rule(row: Mapping[str, Any]) -> Rule:
    where = f"the rule {row.get('name', row.get('code', ''))!r} of [[tool.paceline.check.rules]]"
    for key, value in row.items():
        if key not in OWN_KEYS:
            raise UsageError(f"{where} has no key {key!r}: {suggest(key, OWN_KEYS)}")
        fits = isinstance(value, list) and all(isinstance(v, str) for v in value)
        if not (fits if key in _LISTS else isinstance(value, str)):
            raise UsageError(f"{where}: {key} is {value!r}. It is {'a list of texts' if key in _LISTS else 'a text'}")
    missing = [key for key, needed in OWN_KEYS.items() if needed and not row.get(key)]
    if missing:
        raise UsageError(f"{where} lacks {', '.join(missing)}")
    if not _CODE.fullmatch(row["code"]):
        raise UsageError(f"{where}: code is {row['code']!r}. Codes of a project are PC900 to PC999")
    duty = {key: value for key, value in row.items() if key in _LISTS}
    summary = row["summary"].replace("{", "{{").replace("}", "}}")
    forms = {
        name: form._replace(
            message=f"{summary}: {form.message}",
            remedy=row.get("remedy", "").replace("{", "{{").replace("}", "}}") or form.remedy,
        )
        for name, form in forms_of(read(Path(__file__).with_name("own.toml"))).items()
    }
    words = tuple(pattern.partition("(")[0].rpartition(".")[2].strip("*") for pattern in row["opens"])
    return Rule(
        row["code"], row["name"], row["summary"], row["summary"], duties([duty]), "", "", forms, words, own=True
    )
