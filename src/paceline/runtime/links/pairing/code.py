"""Codes that people read to each other: a number that says which code it is, and two words that are the secret."""

from __future__ import annotations

import re
import secrets
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UsageError

NUMBERS = range(1, 100)
#: 500 short nouns that are hard to mistake for one another when they are read out.
WORDS = tuple((Path(__file__).parent / "words.txt").read_text(encoding="ascii").split())


class Code(NamedTuple):
    """A code; only the words are secret."""

    number: int
    words: str

    def __str__(self) -> str:
        return f"{self.number}-{self.words}"

    @classmethod
    def parse(cls, text: str) -> Code:
        """Read a code as a person types it.

        Raises:
            UsageError: it is no code.
        """
        parts = re.split(r"[-_\s]+", text.strip().lower())
        if len(parts) != 3 or not parts[0].isdecimal() or int(parts[0]) not in NUMBERS:
            raise UsageError(
                f"{text!r} is no code; a code is a number and two words, as in 7-lantern-osprey: `paceline train "
                "--open` prints it on the machine that trains"
            )
        for word in parts[1:]:
            if word not in WORDS:
                raise UsageError(f"{text!r} is no code: no code has the word {word!r}; look at the other screen again")
        return cls(int(parts[0]), "-".join(parts[1:]))


def make_code(used: Container[int]) -> Code:
    """Return a code with a number that was not used; after all of them, they begin again."""
    free = [number for number in NUMBERS if number not in used] or list(NUMBERS)
    return Code(secrets.choice(free), f"{secrets.choice(WORDS)}-{secrets.choice(WORDS)}")
