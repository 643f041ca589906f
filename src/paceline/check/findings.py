"""A finding: where, by which rule, what happens, in which steps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.narrative import Scene, Wait, tell, tell_waits


class Step(NamedTuple):
    """One line of the story: who does what, where."""

    who: str
    line: int
    what: str


@dataclass(slots=True)
class Finding:
    rule: str
    line: int
    column: int
    function: str
    message: str
    story: list[Step] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)  # who waits for whom, where it ends so
    remedy: str = ""
    confidence: float = 0.8
    about: str = ""  # what stays the same when lines move: the lock, the attribute
    path: str = ""
    ordinal: int = 0  # among findings of the same rule about the same thing in one function

    @property
    def fingerprint(self) -> str:
        """The same for the same finding when lines above it come or go."""
        said = "\0".join((self.path, self.rule, self.function, self.about, str(self.ordinal)))
        return hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:16]

    def told(self) -> str:
        """The story and what to change, as lines of text."""
        scenes = [Scene(step.who, f"line {step.line}: {step.what}") for step in self.story]
        if not self.waits:
            return tell("", scenes, self.remedy).lstrip("\n")
        steps = tell("", scenes, tell_waits("", self.waits).rpartition("=> ")[2]).lstrip("\n")
        return f"{steps}\n  => {self.remedy}"

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "rule": self.rule,
            "function": self.function,
            "message": self.message,
            "remedy": self.remedy,
            "story": [step._asdict() for step in self.story],
            "confidence": round(self.confidence, 3),
            "fingerprint": self.fingerprint,
        }
