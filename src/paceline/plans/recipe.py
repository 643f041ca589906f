"""Recipes of named plans: the method and the options of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from paceline.plans.methods import Method

Option = int | float | str


class Kind(NamedTuple):
    """The values that an option may have.

    The default says whether it is an integer, a number (None stands for the method's own default) or a word: one of
    `words`, or any word if `words` is empty.
    """

    default: Option | None
    least: float = 1
    words: tuple[str, ...] = ()
    most: float = math.inf

    @property
    def free(self) -> bool:
        """Whether any word is allowed."""
        return isinstance(self.default, str) and not self.words

    def refusal(self, value: object) -> str | None:
        """Return what is wrong with a value, or None."""
        if self.free:
            return None if isinstance(value, str) else "is not a word"
        if self.words:
            return None if value in self.words else f"is not one of {', '.join(self.words)}"
        what = "whole number" if isinstance(self.default, int) else "number"
        fits = isinstance(value, int if isinstance(self.default, int) else int | float) and not isinstance(value, bool)
        fits = fits and self.least <= value < math.inf  # type: ignore[operator]
        if fits and value > self.most:  # type: ignore[operator]
            return f"is more than {self.most}"
        return None if fits else f"is not a {what} of at least {self.least}"


@dataclass(frozen=True)
class Recipe:
    """A named plan: one line about it, the function that makes its method from options, and its options.

    The function names the options that it needs as its parameters; `workers` and `threads` belong to every plan of
    several processes and need not be named.
    """

    about: str
    method: Callable[..., Method]
    options: dict[str, Kind]


WORKERS, THREADS = Kind(2), Kind(1)
TEAM = {"workers": WORKERS, "threads": THREADS}
SIZES = Kind("")
CANONICAL = Kind(0, least=0)
# Of plans whose workers sum their gradients.
SUMMED = {**TEAM, "codec": Kind("dense"), "sizes": SIZES, "canonical": CANONICAL}
SERVER = {**TEAM, "codec": Kind("dense"), "shards": Kind(1), "chunks": Kind(1)}
PULLED = {**SERVER, "pull": Kind("dense")}  # of servers whose answers may be coded, too
