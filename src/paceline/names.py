"""Names that users give, as they enter comments, identifiers, paths and terminals.

The name of a module, a job or a file may hold anything: line breaks, `*/`, `..`, quotes, escape sequences. What is made
of it here ends no comment, is an identifier, stays in its folder, and does nothing to a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

#: Characters of a comment, and of the name of a file: the first ones and the last ones of a longer text stay.
COMMENT, FILE = (150, 50), (70, 30)
#: What a terminal would obey, or show in another order, and halves of characters, which cannot be written.
UNSEEN = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def comment(text: str) -> str:
    """Return a text that ends no comment of C or C++: on one line, without slashes, backslashes and trigraphs."""
    return _cut(re.sub(r"[^A-Za-z0-9_ .,:;=+*%()<>\[\]-]", "_", text), *COMMENT)


def visible(text: str) -> str:
    """Return a text as a terminal may show it: control characters as Python writes them, but for lines and tabs."""
    return UNSEEN.sub(lambda character: ascii(character[0])[1:-1], text)


def identifier(text: str) -> str:
    """Return the identifier that is nearest to a text, or the end of one that begins with a letter."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """Return an identifier for each name, no two of them alike."""
    by_name: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        word = identifier(name)
        while word in used:
            word += "_"
        used.add(word)
        by_name[name] = word
    return by_name


def file_name(text: str) -> str:
    """Return the name of a file or a folder: letters of any alphabet, digits, and `_`, `.` and `-` within."""
    words = _cut(re.sub(r"[^\w.-]+", "-", text).strip(".-"), *FILE)
    while len(words.encode(errors="replace")) > 200:  # a file system counts bytes, up to 255
        words = words[:-1]
    return PurePath(words).name or "unnamed"


def _cut(text: str, first: int, last: int) -> str:
    return text if len(text) <= first + last else f"{text[:first]}..{text[-last:]}"
