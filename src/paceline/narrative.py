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


class Wait(NamedTuple):
    """Somebody who stands still: what it did last, what it waits for, and who would have to do that."""

    who: str
    did: str
    wants: str
    whom: str


def circle(waits: Sequence[Wait]) -> list[Wait]:
    """The shortest circle of people who wait for each other; none where there is no circle."""
    by_name: dict[str, list[Wait]] = {}
    for wait in waits:
        by_name.setdefault(wait.who, []).append(wait)
    best: list[Wait] = []
    for start in by_name:
        paths, seen = [[wait] for wait in by_name[start]], set[str]()
        while paths and (not best or len(paths[0]) < len(best)):
            path = paths.pop(0)
            whom = path[-1].whom
            if whom == start:
                best = path
                break
            if whom not in seen:
                seen.add(whom)
                paths += [[*path, wait] for wait in by_name.get(whom, [])]
    return best


def tell_waits(headline: str, waits: Sequence[Wait]) -> str:
    """Why nobody can go on: the shortest circle, or else the first who waits for somebody who will never do it."""
    found = circle(waits)
    if found:
        moral = f"a circle: {' waits for '.join([*(wait.who for wait in found), found[0].who])}, and so for ever"
    else:
        waiting = {wait.who for wait in waits}
        found = [next((wait for wait in waits if wait.whom not in waiting), waits[0])]
        moral = f"{found[0].who} waits for {found[0].whom}, who never does it"
    return tell(headline, [Scene(w.who, f"{w.did}, then waits for {w.whom} to {w.wants}") for w in found], moral)
