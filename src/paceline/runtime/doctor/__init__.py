"""What of this machine, and of the way to another one, would keep a run from starting or make it slow, and the remedy.

machine.py  this machine alone: network, cores, versions, compiler, disk
way.py      the way to another machine, which answers meanwhile: ports in both directions, packets, clock, speed
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Grade(str, Enum):
    """What a finding means for a run."""

    GOOD = "good"
    #: A run works, with less than it could.
    NOTE = "note"
    #: A run does not work.
    FAULT = "fault"


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    grade: Grade
    #: What is there.
    text: str
    #: What to do; empty if nothing has to be done.
    remedy: str = ""


__all__ = ["Finding", "Grade"]
