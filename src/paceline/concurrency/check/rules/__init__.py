"""The rules, by family: a folder each, with a row per rule in its `rules.toml`, and files for what no solver finds.

A row that has duties is solved by `typestates`, one that has losses by `lost`. For anything else a row names the file
with the function of its name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.lost import losses
from paceline.concurrency.check.rules.rule import Form, Rule, in_tuples
from paceline.concurrency.check.rules.typestates import duties
from paceline.concurrency.check.threads.sharing import THREAD_WORDS
from paceline.errors import UsageError, suggest

# Rows of rules in TOML: those of the checker, and those that a project adds for its own libraries.

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(file: Path) -> dict[str, Any]:
    """A file of rows."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def forms_of(row: Mapping[str, Any]) -> dict[str, Form]:
    """The forms of a rule, which are the tables in its row."""
    return {name: Form(**in_tuples(sentences)) for name, sentences in row.items() if isinstance(sentences, dict)}


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
    finds += [*duties(row.get("duty", ())), *losses(row.get("loss", ()))]
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

#: The keys of a project's own rule, and whether it needs them.
OWN_KEYS = dict.fromkeys(("code", "name", "summary", "opens", "closes"), True)
OWN_KEYS |= dict.fromkeys(("owes", "breach", "remedy"), False)
_LISTS = ("opens", "closes", "owes", "breach")
_CODE = re.compile(r"PC9\d\d")


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


# The documentation of the checker's rules, from the rules themselves: `paceline explain` and the site's pages.


def section(rule: Rule) -> str:
    """One rule in Markdown, with an example that it reports and one that it does not."""
    head = f"### {rule.code} {rule.name}\n\n{rule.why.strip()}"
    return f"{head}\n\nReported:\n\n```text\n{rule.bad}```\n\nNot reported:\n\n```text\n{rule.good}```\n"


def explain_rule(code: str) -> str:
    """The section of the rule with this code or name, in any case of letters."""
    names = {rule.name.lower(): known for known, rule in RULES.items()}
    rule_code = names.get(code.strip().lower(), code.strip().upper())
    if rule_code not in RULES:
        raise UsageError(f"there is no rule {code!r}: {suggest(code.strip().upper(), RULES)}")
    return section(RULES[rule_code])
