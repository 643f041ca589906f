"""What the ranks of a tuning say to each other, as JSON: nothing that comes over a connection is unpickled.

A message of a rank is a list, its kind first. What has the right form is taken; anything else is a FrameError.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import FrameError
from paceline.planning.tuner.study import Assignment, TrialRecord
from paceline.planning.tuner.trials import Ended, Terms
from paceline.planning.tuner.trials.dispatch import DIED, JOINED
from paceline.planning.tuner.trials.worker import END, READY, REPORT, UNUSABLE
from paceline.runtime.runs.schema import from_dict, to_dict

#: What follows the kind of a rank's message.
PARTS: dict[str, tuple[Any, ...]] = {
    JOINED: (),
    READY: (),
    REPORT: (int, int, float),
    END: (list[Ended],),
    DIED: (str,),
    UNUSABLE: (str,),
}


@dataclass(frozen=True)
class SearchOutcome:
    """What a search has come to: its trials by number, and the best of them."""

    trials: dict[int, TrialRecord]
    best: int | None


def pack(value: Any) -> bytes:
    """Return the bytes of a message."""
    return json.dumps(to_dict(value)).encode()


def pack_terms(terms: Terms) -> bytes:
    return pack([terms.seed, None if terms.states is None else str(terms.states)])


def terms_of(body: memoryview) -> Terms:
    seed, states = _parts((int, str | None), _read(body))
    return Terms(seed, None if states is None else Path(states))


def message_of(body: memoryview) -> tuple[Any, ...]:
    """Return what a rank says of a worker."""
    kind, *rest = _list(_read(body)) or [None]
    if not isinstance(kind, str) or kind not in PARTS:
        raise FrameError("body", f"{kind!r:.40} is nothing that a rank says")
    return kind, *_parts(PARTS[kind], rest)


def answer_of(body: memoryview) -> bool | list[Assignment]:
    """Return what a worker is sent: whether its trial is to stop, or legs."""
    value = _read(body)
    if isinstance(value, bool):
        return value
    (legs,) = _parts((list[Assignment],), [value])
    assert isinstance(legs, list)
    return legs


def outcome_of(body: memoryview) -> SearchOutcome:
    (outcome,) = _parts((SearchOutcome,), [_read(body)])
    assert isinstance(outcome, SearchOutcome)
    return outcome


def _read(body: memoryview) -> Any:
    try:
        return json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise FrameError("body", f"a message between ranks cannot be read: {error}") from error


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FrameError("body", f"a message between ranks is {value!r:.40}, and no list")
    return value


def _parts(kinds: Sequence[Any], values: Any) -> list[Any]:
    """Return the parts of a message, of which each has its type."""
    try:
        return [from_dict(kind, value) for kind, value in zip(kinds, _list(values), strict=True)]
    except (ValueError, TypeError) as error:
        raise FrameError("body", f"a message between ranks cannot be read: {error}") from error
