"""Stories: the common text form of an interleaving, a deadlock or a failure.

A story is a headline, numbered steps (who does what), and the broken property at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Scene(NamedTuple):
    """One step of a story."""

    who: str
    what: str


def format_story(headline: str, scenes: Sequence[Scene], conclusion: str) -> str:
    """Return the story as lines of text."""
    width = max((len(s.who) for s in scenes), default=0)
    lines = [f"  {number:>3}. {s.who:<{width}}  {s.what}" for number, s in enumerate(scenes, start=1)]
    return "\n".join([headline, *lines, f"  => {conclusion}"])


class Wait(NamedTuple):
    """A thread, task or worker that is blocked: what it did last, what it waits for, and whose action that needs."""

    who: str
    did: str
    wants: str
    whom: str


def shortest_cycle(waits: Sequence[Wait]) -> list[Wait]:
    """Return the shortest cycle of waits, each for the next one; empty when there is none."""
    by_name: dict[str, list[Wait]] = {}
    for wait in waits:
        by_name.setdefault(wait.who, []).append(wait)
    best: list[Wait] = []
    for start in by_name:
        paths, visited = [[wait] for wait in by_name[start]], set[str]()
        while paths and (not best or len(paths[0]) < len(best)):
            path = paths.pop(0)
            whom = path[-1].whom
            if whom == start:
                best = path
                break
            if whom not in visited:
                visited.add(whom)
                paths += [[*path, wait] for wait in by_name.get(whom, [])]
    return best


def format_waits(headline: str, waits: Sequence[Wait]) -> str:
    """Return the story of a deadlock: the shortest cycle, or the first wait for something that never happens."""
    circle = shortest_cycle(waits)
    if circle:
        chain = ", which waits for ".join(wait.whom for wait in circle) if len(circle) > 1 else "itself"
        conclusion = f"deadlock: {circle[0].who} waits for {chain}"
    else:
        waiting = {wait.who for wait in waits}
        circle = [next((wait for wait in waits if wait.whom not in waiting), waits[0])]
        conclusion = f"{circle[0].who} waits for {circle[0].whom}, which never does it"
    scenes = [Scene(w.who, f"{w.did}, then waits for {w.whom} to {w.wants}") for w in circle]
    return format_story(headline, scenes, conclusion)
