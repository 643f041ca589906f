"""The plans that were chosen on this machine, by what was to be trained."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from paceline import user_cache
from paceline.training.gradients.choice import choices


class Followed(NamedTuple):
    """A plan with how it computes gradients, and why."""

    plan: str
    compute: str
    why: str


def recall(key: str) -> Followed | None:
    """Return what was chosen before; None if nothing was."""
    with suppress(OSError, ValueError, TypeError):
        return Followed(**json.loads(user_cache.read(_file(key))))
    return None


def remember(key: str, followed: Followed) -> None:
    """Keep a choice for later processes."""
    with suppress(OSError):  # it will be made again
        user_cache.write(_file(key), json.dumps(followed._asdict()).encode())


def _file(key: str) -> Path:
    return choices() / f"plan-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
