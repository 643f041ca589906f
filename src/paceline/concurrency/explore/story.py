"""The schedule as a story: which thread ran until where, and before what it was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.operation import Operation, Place
from paceline.concurrency.explore.scheduler import Run

LONGEST = 16  # lines of a story


class Stretch(NamedTuple):
    """Consecutive steps of one thread."""

    thread: int
    following: Operation | None  # what it would have done next; None at its end
    interrupted: bool  # it could have done it, but another thread was chosen


def story_of(finding: Finding, run: Run) -> Finding:
    """Return a finding whose story begins with the schedule that led to it."""
    if not run.switches:
        return finding
    scenes = [_scene(run.tasks[each.thread].name, each) for each in stretches(run)]
    if len(scenes) > LONGEST:
        left_out = len(scenes) - LONGEST
        scenes = [("", f"({left_out} earlier stretches are left out)", None), *scenes[-LONGEST:]]
    return replace(finding, story=(*scenes, *finding.story), place=finding.where)


def stretches(run: Run) -> Iterator[Stretch]:
    """Yield the stretches of a run but for the last one, which ends with the finding."""
    for step, following in pairwise(run.trace):
        thread = step.option.thread
        if following.option.thread != thread:
            could = any(each.thread == thread and not each.expires for each in following.options)
            yield Stretch(thread, following.pending.get(thread), could)


def _scene(who: str, stretch: Stretch) -> tuple[str, str, Place | None]:
    operation = stretch.following
    if operation is None:
        return who, "runs to its end", None
    what = f"{operation.verb} {operation.subject}"
    if stretch.interrupted:
        return who, f"is interrupted before it {what}", operation.place
    return who, f"runs until it {what}", operation.place
