"""Waits that are lost: the rows of rules that say which stops, and why nothing ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from paceline.concurrency.check.rules.rule import Witness, in_tuples
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.threads.stops import Stop, stops
from paceline.concurrency.check.threads.waits import Prevented, lost

#: What the sentences of such a rule may name.
TERMS = {"at", "fn", "stop", "by", "ender"}


class Loss(NamedTuple):
    """Which stops a rule is about, and by what all that would end them is prevented."""

    why: tuple[str, ...]
    form: str
    at: tuple[str, ...] = ()  # kinds of stops, as `Queue.get`; any without
    in_loop: bool = False  # only in a loop, which may fill a queue, or reads what others wait for
    called: bool = False  # only where a call leads to the wait
    inside: bool = False  # reported at the wait itself, rather than at the call that leads there


def losses(rows: Iterable[Mapping[str, Any]]) -> tuple[Callable[[Facts], Iterator[Witness]], ...]:
    """What finds the lost waits of a rule's row."""
    kinds = [Loss(**in_tuples(row)) for row in rows]
    return (partial(_losses, kinds),) if kinds else ()


def _losses(kinds: Sequence[Loss], facts: Facts) -> Iterator[Witness]:
    reported: set[tuple[int, str]] = set()
    for stop, reasons in _lost(facts):
        for kind in (k for k in kinds if _is_about(k, stop, reasons)):
            by = next(r for r in reasons if r.why in kind.why)
            if stop.for_room and not _ends_circle(stop, by):
                continue
            about = by.lock.resource.id if by.lock is not None else (by.stop or stop).name
            if (id(stop.fn), about) not in reported:
                reported.add((id(stop.fn), about))
                where, node = stop.steps[-1 if kind.inside else 0]
                yield Witness(node, where, kind.form, stop=stop, by=by, ender=by.ender)


def _ends_circle(stop: Stop, by: Prevented) -> bool:
    """Whether a stop is the last one of its circle, at which alone that is reported."""
    of_circle = by.why != "in a circle" or any(other.call is stop.call for other in by.circle)
    return of_circle and all(other.at.lineno <= stop.at.lineno for other in by.circle)


def _lost(facts: Facts) -> list[tuple[Stop, list[Prevented]]]:
    if facts.lost is None:
        facts.lost = [(stop, reasons) for stop in stops(facts) if (reasons := lost(stop, facts))]
    return facts.lost


def _is_about(kind: Loss, stop: Stop, reasons: list[Prevented]) -> bool:
    """Whether a rule speaks of a stop that is lost for these reasons."""
    if kind.at and stop.kind not in kind.at:
        return False
    if kind.called and len(stop.steps) == 1:
        return False
    where, node = stop.steps[0] if kind.called else stop.steps[-1]
    return {r.why for r in reasons} <= {*kind.why} and (not kind.in_loop or in_loop(node, where))
