"""A schedule as a word that can be pasted into a bug report: `ex1-...`."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence

from paceline.concurrency.explore.strategies.replay import Switch
from paceline.errors import UsageError

PREFIX = "ex1-"


def write_token(switches: Sequence[Switch]) -> str:
    """Return the token of a schedule: its switches away from the plain order."""
    text = json.dumps([[each.thread, each.own_step, each.to, int(each.expires)] for each in switches])
    return PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def read_token(token: str) -> list[Switch]:
    """Return the schedule of a token.

    >>> read_token(write_token([Switch(1, 7, 2, False)]))
    [Switch(thread=1, own_step=7, to=2, expires=False)]
    """
    try:
        data = base64.urlsafe_b64decode(token.removeprefix(PREFIX) + "===")
        rows = json.loads(zlib.decompress(data))
        if not token.startswith(PREFIX):
            raise ValueError
        return [Switch(int(thread), int(step), int(to), bool(expires)) for thread, step, to, expires in rows]
    except (ValueError, zlib.error):
        raise UsageError(
            f"--replay {token}: not a token of a schedule; paste the word of a finding, which begins with {PREFIX!r}"
        ) from None
