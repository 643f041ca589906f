"""Stories: how any interleaving or failure is told.

A story is a list of steps (who, what), told one per line under a headline, with the broken rule at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Scene(NamedTuple):
    who: str
    what: str


def tell(headline: str, scenes: Sequence[Scene], moral: str) -> str:
    width = max((len(s.who) for s in scenes), default=0)
    lines = [f"  {number:>3}. {s.who:<{width}}  {s.what}" for number, s in enumerate(scenes, start=1)]
    return "\n".join([headline, *lines, f"  => {moral}"])
