"""A CSV file of which some lines are bad in six ways, with the truth about each line."""

from __future__ import annotations

import random
from pathlib import Path

FAULTS = {
    "too few fields": "{0},0.5,3",
    "too many fields": "{0},0.5,3,x,y,z",
    "a is not a float": "{0},abc,3,x",
    "a quote is not closed": '{0},0.5,3,"open',
    "not UTF-8": "{0},0.5,3,\udcff\udcfe",
    "b is missing": "{0},0.5,,x",
}
SCHEMA = {"id": "int", "a": "float", "b": "int", "name": "text"}


def write_dirty(path: Path, rows: int, bad: int, seed: int, breaks: bool = False) -> dict[int, str]:
    """Write the file; return {line: rule} of its bad lines.

    With `breaks` there are line breaks inside quotes, and no quote that is not closed: where both meet, nobody can tell
    where a row ends.
    """
    chance = random.Random(seed)
    kinds = [rule for rule in FAULTS if not (breaks and "quote" in rule)]
    names = ["plain", '5" wide', ' "spaced" ', '"quoted"', '"a ""word"""', '"two\nlines"' if breaks else '"a, b"']
    truth: dict[int, str] = {}
    faulty = {number: chance.choice(kinds) for number in chance.sample(range(rows), bad)}
    lines, at = ["id,a,b,name"], 2
    for number in range(rows):
        if chance.random() < 0.01:
            lines.append("")  # a blank line is no row
            at += 1
        name = chance.choice(names)
        good = f"{number},{number / 7:.3f},{number % 9},{name}"
        line = FAULTS[faulty[number]].format(number) if number in faulty else good
        if number in faulty:
            truth[at] = faulty[number]
        lines.append(line)
        at += 1 + line.count("\n")
    path.write_bytes("\n".join([*lines, ""]).encode("utf-8", "surrogateescape"))
    return truth
