"""A finding: a possible deadlock or race with its place, its story and its remedy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.narrative import Scene, Wait, format_story, format_waits


class Step(NamedTuple):
    """One line of the story: which thread, task or rank does what, on which line."""

    who: str
    line: int
    what: str


@dataclass(slots=True)
class Finding:
    """What a rule reports."""

    rule: str
    line: int
    column: int
    function: str
    message: str
    story: list[Step] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)  # for a deadlock: who waits for whom
    remedy: str = ""
    confidence: float = 0.8  # how likely it is worth a look
    about: str = ""  # the lock or attribute: part of the fingerprint, since it stays the same when lines move
    path: str = ""
    verdict: bool | None = None  # what a comment on its line says: a bug, or none
    ordinal: int = 0  # among findings of the same rule about the same thing in one function
    signs: dict[str, float] = field(default_factory=dict)  # what the file says around it
    subject: str = ""  # what it is about, where that has one name in the whole file
    further: list[Finding] = field(default_factory=list)  # the same mistake at other places of the file
    bug: float = 0.5  # how likely it is a bug, rather than a smell or false

    @property
    def fingerprint(self) -> str:
        """An id that stays the same when lines above the finding are added or removed."""
        identity = "\0".join((self.path, self.rule, self.function, self.about, str(self.ordinal)))
        return hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:16]

    @property
    def places(self) -> list[Finding]:
        """The mistake at each of its places, this one first."""
        return [self, *self.further]

    @property
    def elsewhere(self) -> str:
        """The further places as words; empty where there are none."""
        lines = [str(place.line) for place in self.further]
        return f"also at line{'s' if lines[1:] else ''} {', '.join(lines)}" if lines else ""

    def explanation(self) -> str:
        """The story, the remedy and the further places as lines of text."""
        return "\n  => ".join(filter(None, (self._steps(), self.elsewhere)))

    def _steps(self) -> str:
        scenes = [Scene(step.who, f"line {step.line}: {step.what}") for step in self.story]
        if not self.waits:
            return format_story("", scenes, self.remedy).lstrip("\n")
        steps = format_story("", scenes, format_waits("", self.waits).rpartition("=> ")[2]).lstrip("\n")
        return f"{steps}\n  => {self.remedy}"

    def as_dict(self) -> dict[str, object]:
        """The finding as `--format json` prints it."""
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
            "bug": round(self.bug, 3),
            "fingerprint": self.fingerprint,
            "also_at": [
                {name: getattr(place, name) for name in ("line", "column", "function", "message", "fingerprint")}
                for place in self.further
            ],
        }
