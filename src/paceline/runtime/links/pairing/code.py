"""Codes that people read to each other: a number that says which code it is, and words that are the secret."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Container
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UsageError

NUMBERS = range(1, 100)
#: 500 short nouns that are hard to mistake for one another when they are read out.
WORDS = tuple((Path(__file__).parent / "words.txt").read_text(encoding="ascii").split())
#: The words of a code at first, and of those that follow after GUESSES wrong ones: 250,000 and 62,500,000,000 secrets.
SHORT, LONG = 2, 4
GUESSES = 5


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
        number, *words = re.split(r"[-_\s]+", text.strip().lower())
        if len(words) not in (SHORT, LONG) or not number.isdecimal() or int(number) not in NUMBERS:
            raise UsageError(
                f"{text!r} is no code; a code is a number and {SHORT} or {LONG} words, as in 7-lantern-osprey: "
                "`paceline train --open` prints it on the machine that trains"
            )
        for word in words:
            if word not in WORDS:
                raise UsageError(f"{text!r} is no code: no code has the word {word!r}; look at the other screen again")
        return cls(int(number), "-".join(words))


def make_code(used: Container[int], words: int = SHORT) -> Code:
    """Return a code with a number that was not used; after all of them, they begin again."""
    free = [number for number in NUMBERS if number not in used] or list(NUMBERS)
    return Code(secrets.choice(free), "-".join(secrets.choice(WORDS) for _ in range(words)))


class Verdict(IntEnum):
    """What the machine that trains says of a number or of a proof."""

    RIGHT = 0
    WRONG = 1
    #: There is no code with this number.
    NO_NUMBER = 2
    #: Another machine has joined with this code.
    USED_UP = 3
    #: Another machine is about to join with this code.
    BUSY = 4
    #: It was guessed at too often.
    WITHDRAWN = 5


class Codes:
    """The code of a run that is good now, and how often it was guessed at. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Wrong codes that machines have given.
        self.wrong = 0
        #: The code with which the next machine joins, whether one is about to, and what became of earlier numbers.
        self.current, self._busy = make_code(()), False
        self._spent: dict[int, Verdict] = {}

    def verdict(self, number: int) -> tuple[Verdict, Code | None]:
        """Return the verdict on the number of an unknown machine, and its code if that is good."""
        with self._lock:
            verdict = self._verdict(number)
            return verdict, self.current if verdict is Verdict.RIGHT else None

    def judge(self, code: Code, right: bool) -> Verdict:
        """Decide about a proof that a machine knows a code, which was good when the exchange began.

        Of two machines that prove it at once one is let in, and a code bears no more than its guesses.
        """
        with self._lock:
            if (verdict := self._verdict(code.number)) is not Verdict.RIGHT or code != self.current:
                return verdict if verdict is not Verdict.RIGHT else Verdict.NO_NUMBER
            if right:
                self._busy = True
                return Verdict.RIGHT
            self.wrong += 1
            if self.wrong == GUESSES:
                self._renew(Verdict.WITHDRAWN)
            return Verdict.WRONG

    def release(self, joined: bool) -> None:
        """Take note of whether the machine has joined that knew the code; if not, the code is good again."""
        with self._lock:
            self._busy = False
            if joined:
                self._renew(Verdict.USED_UP)

    def _verdict(self, number: int) -> Verdict:
        if number == self.current.number:
            return Verdict.BUSY if self._busy else Verdict.RIGHT
        return self._spent.get(number, Verdict.NO_NUMBER)

    def _renew(self, why: Verdict) -> None:
        """Make the next code, after this one was spent."""
        self._spent[self.current.number] = why
        self.current = make_code(self._spent, SHORT if self.wrong < GUESSES else LONG)
        self._spent.pop(self.current.number, None)
