"""An object is the same, and a caller the same caller, however the program reaches it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.concurrency.check.engine import check_text, examine_together
from paceline.concurrency.check.rules import RULES
from tests.concurrency.check.pairs.programs import BUGS, CALLED, Bug, program, side, ways
from tests.each import each

#: What is not found yet, by way and bug.
MISSING = {("a list of steps", "rank")}


def rules_of(files: dict[str, str]) -> set[str]:
    """The codes of what is found in a program."""
    if len(files) == 1:
        return {found.rule for path, text in files.items() for found in check_text(path, text)}
    return {found.rule for examined in examine_together(files).values() for found in examined.findings}


def is_found(way: str, bug: Bug) -> bool:
    """Whether the bug is found in the broken program; there must be nothing to find in the repaired one."""
    quiet = rules_of(program(way, bug, broken=False))
    assert not quiet, f"found in the repaired program: {sorted(quiet)}"
    return any(rule.startswith(tuple(bug.codes.split())) for rule in rules_of(program(way, bug, broken=True)))


def cases(every: bool) -> Iterator[tuple[str, str, str]]:
    """(table, way, bug): one bug for each way, the bugs in turn; or every bug for each way."""
    for table in ("objects", "callbacks"):
        for number, way in enumerate(ways(table)):
            names = list(BUGS)
            for bug in names if every else [names[number % len(names)]]:
                yield table, way, bug
    for table in CALLED:
        yield from ((table, way, table) for way in ways(table))


@each(("table", "way", "bug"), list(cases(every=False)))
def test_a_bug_is_found_however_it_is_reached(table: str, way: str, bug: str) -> None:
    assert is_found(ways(table)[way], (BUGS | CALLED)[bug]) == ((way, bug) not in MISSING)


@pytest.mark.soak
@pytest.mark.parametrize(("table", "way", "bug"), list(cases(every=True)))
def test_every_bug_is_found_however_it_is_reached(table: str, way: str, bug: str) -> None:
    assert is_found(ways(table)[way], (BUGS | CALLED)[bug]) == ((way, bug) not in MISSING)


@each("name", list(ways("processes")))
def test_a_bug_of_processes_tasks_and_ranks_is_found(name: str) -> None:
    difference = ways("processes")[name]
    broken, repaired = (rules_of({"main.py": side(difference, broken)}) for broken in (True, False))
    assert name.partition(" ")[0] in broken
    assert not repaired


def test_the_order_in_which_rules_ask_makes_no_difference() -> None:
    for way in list(ways("callbacks").values()) + list(ways("callers").values()):
        files = program(way, BUGS["order"] if "USE" in way else CALLED["callers"], broken=True)
        text = next(iter(files.values()))
        forwards, backwards = (
            check_text("main.py", text, rules) for rules in (RULES.values(), [*RULES.values()][::-1])
        )
        assert [(f.rule, f.line, f.message) for f in forwards] == [(f.rule, f.line, f.message) for f in backwards]
