"""Stories: who waits for whom, and the schedule that led there: which thread was interrupted at which line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

from paceline.concurrency.explore.finding import Finding, at
from paceline.concurrency.explore.operation import Place

Run: TypeAlias = Any  # of the scheduler, which calls this module
Task: TypeAlias = Any
LONGEST = 16  # lines of a story
WAITING = {
    "takes": "waits for", "gets from": "waits for an item of", "puts into": "waits for room in",
    "reads from": "waits for a message of", "writes into": "waits for room in",
}  # fmt: skip


def circle_of(tasks: Sequence[Task], first: Task) -> list[Task]:
    """Return the circle of holders, none of which waits with a deadline, that a wait has closed; empty if none."""
    path: list[Task] = []
    each = first
    while each not in path:
        operation = each.pending
        if each.done or operation is None or operation.deadline is not None or operation.ready():
            return []
        path.append(each)
        holder = operation.holder()
        if holder is None:
            return []
        each = tasks[holder]
    return path if each is first else []


def deadlock(circle: Sequence[Task], others: Sequence[Task]) -> Finding:
    """Describe threads that wait for each other, or that wait for what no thread will do any more."""
    if circle:
        names = [each.name for each in circle]
        chain = ", which waits for ".join([*names[1:], names[0]])
        conclusion = f"deadlock: {names[0]} waits for {chain}" if names[1:] else f"{names[0]} waits for itself"
        message = "threads wait for each other" if names[1:] else "a thread waits for what it holds itself"
        return Finding("deadlock", message, tuple(map(_scene, circle)), conclusion)
    blocked = [each for each in others if each.pending is not None and not each.done]
    ranks = [each for each in blocked if each.pending is not None and each.pending.verb == "calls"]
    if ranks:
        return _hung_ranks(ranks, [each.name for each in others if each.done and each.name.startswith("rank ")])
    blocked.sort(key=lambda each: "the end of" in _scene(each)[1])  # which explains nothing
    for lost in blocked:
        subject = lost.pending.subject if lost.pending else None
        if signal := getattr(subject, "early_signal", None):
            return Finding(
                "lost wake-up",
                f"{lost.name} waits for {subject}, which was notified before it waited",
                ((signal[0], f"sends {subject}, and no thread waits", signal[1]), *map(_scene, blocked)),
                f"{lost.name} waits for ever: test the condition under the lock, in a loop, before each wait",
            )
    everyone = ", ".join(each.name for each in blocked)
    return Finding(
        "deadlock",
        "no thread can continue",
        tuple(scene for each in blocked for scene in (_scene(each), *getattr(each.pending.subject, "scenes", ()))),
        f"{everyone} can never continue: no thread is left that could wake {'it' if len(blocked) == 1 else 'them'}",
    )


def _hung_ranks(ranks: Sequence[Task], ended: Sequence[str]) -> Finding:
    """Describe ranks that wait in collectives which others do not call."""
    calls = [f"{each.name} calls {each.pending.subject}{at(each.pending.place)}" for each in ranks if each.pending]
    if ended:
        calls.append(f"{' and '.join(ended)} {'has' if len(ended) == 1 else 'have'} ended")
    advice = "let every rank call the same collectives, in the same order and equally often"
    return Finding("deadlock", ", ".join(calls), tuple(map(_scene, ranks)), advice)


def _scene(waiter: Task) -> tuple[str, str, Place]:
    operation = waiter.pending
    verb = WAITING.get(operation.verb, operation.verb)
    return waiter.name, f"{verb} {operation.subject}{getattr(operation.subject, 'held', '')}", operation.place


def story_of(finding: Finding, run: Run) -> Finding:
    """Return a finding with the schedule that led to it: a line wherever another thread continues."""
    scenes: list[tuple[str, str, Place | None]] = []
    for step, following in pairwise(run.trace if run.switches else ()):
        thread = step.option.thread
        if following.option.thread != thread:
            operation, who = following.pending.get(thread), run.tasks[thread].name
            could = any(each.thread == thread and not each.expires for each in following.options)
            what = f"{operation.verb} {operation.subject}" if operation else "runs to its end"
            before = "" if operation is None else "is interrupted before it " if could else "runs until it "
            scenes.append((who, before + what, operation.place if operation else None))
    if len(scenes) > LONGEST:
        left_out = len(scenes) - LONGEST
        scenes = [("", f"({left_out} earlier stretches are left out)", None), *scenes[-LONGEST:]]
    return replace(finding, schedule=tuple(scenes))
