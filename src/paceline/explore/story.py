"""The schedule as a story: which thread ran until where, and before what it was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from paceline.explore.finding import Finding
from paceline.explore.operation import Operation, Place
from paceline.explore.scheduler import Run

LONGEST = 16  # lines of a story


class Stretch(NamedTuple):
    """Consecutive steps of one thread."""

    thread: int
    first: Operation
    last: Operation
    before: Operation | None  # what it would have done next when another thread was chosen in its place


def story_of(finding: Finding, run: Run) -> Finding:
    """Return a finding whose story begins with the schedule that led to it."""
    if not run.switches:
        return finding
    scenes = [(run.tasks[each.thread].name, _what(each), each.last.place) for each in stretches(run)]
    if len(scenes) > LONGEST:
        left_out = len(scenes) - LONGEST
        scenes = [("", f"({left_out} earlier stretches are left out)", Place("", 0, "")), *scenes[-LONGEST:]]
    shown = [(who, what, place if place.file else None) for who, what, place in scenes]
    where = finding.where
    return replace(finding, story=(*shown, *finding.story), place=where)


def stretches(run: Run) -> Iterator[Stretch]:
    """Yield the stretches of a run."""
    begun: Operation | None = None
    for at, step in enumerate(run.trace):
        begun = begun or step.operation
        following = run.trace[at + 1] if at + 1 < len(run.trace) else None
        if following is not None and following.option.thread == step.option.thread:
            continue
        thread = step.option.thread
        before = following.pending.get(thread) if following is not None else None
        if before is not None and following is not None:
            could = any(each.thread == thread and not each.expires for each in following.options)
            before = before if could else None
        yield Stretch(thread, begun, step.operation, before)
        begun = None


def _what(stretch: Stretch) -> str:
    text = _did(stretch.first)
    if stretch.last is not stretch.first:
        text += f", and so on until it {_did(stretch.last)}"
    if stretch.before is not None:
        text += f"; is interrupted before it {_did(stretch.before)}"
    return text


def _did(operation: Operation) -> str:
    verb = {"waits for": "has waited for", "sleeps": "has slept"}.get(operation.verb, operation.verb)
    return f"{verb} {operation.subject}"
