"""The events of a run on a cluster, and what `paceline watch` found of any run, as rows of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from paceline.runtime.runs.events import Event, EventKind

SHOWN = 60  # events at most
TOLD = set(EventKind) - {EventKind.STARTED, EventKind.LEASING}
ALWAYS = {EventKind.HUNG}


def cluster_events(events: Sequence[Event]) -> str:
    """What happened to the processes of a run after its servers first served, and which of them hung at any time."""
    begun = (n for n, event in enumerate(events) if event.kind in (EventKind.LEASING, EventKind.GROUP))
    start = next(begun, len(events)) + 1
    notable = [event for at, event in enumerate(events) if event.kind in (TOLD if at >= start else ALWAYS)]
    lines = "".join(
        f"<tr><td>{event.at - events[0].at:.2f} s<td>{escape(_describe(event))}</tr>" for event in notable[:SHOWN]
    )
    more = f"<p class=note>{len(notable) - SHOWN} more are in events.jsonl.</p>" if len(notable) > SHOWN else ""
    return f"<table>{lines}</table>{more}" if lines else ""


def _describe(event: Event) -> str:
    """Describe an event in a line."""
    members = ", ".join(map(str, event.members))
    if event.kind in (EventKind.VIEW, EventKind.SERVING):
        does = "serve" if event.kind is EventKind.SERVING else "are to hold"
        return f"servers {members} {does} shard {event.shard}" + "; pushes may be missing" * event.lossy
    if event.kind is EventKind.GROUP:
        return f"ranks {members} go on, as group {event.number}"
    if event.kind is EventKind.HUNG:
        return f"hangs, {event.why}"
    if event.kind in (EventKind.AGAIN, EventKind.SHARD_LOST):
        return f"{event.why} are computed again" if event.why else f"shard {event.shard} is lost"
    return f"{event.process} {event.number} of rank {event.rank} {event.why or 'has ended'}"
