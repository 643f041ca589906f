"""A finding: a possible deadlock or race with its place, its story and its remedy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.narrative import Scene, Wait, format_story, format_waits

#: How many findings of a family of rules were worth a look, of those judged by reading: two in three is high,
#: 0.55 medium. It is a rank of the family: no model says yet how likely a single finding is true. A project's own
#: rules are PC9.
RANKS = {"PC0": "high", "PC1": "medium", "PC2": "medium", "PC3": "high", "PC4": "low", "PC5": "low", "PC9": "medium"}
LOWEST_FIRST = ("low", "medium", "high")


def is_ranked(rank: str, least: str) -> bool:
    """Whether a rank is at least another one."""
    return LOWEST_FIRST.index(rank) >= LOWEST_FIRST.index(least)


class Step(NamedTuple):
    """One line of the story: which thread, task or rank does what, on which line."""

    who: str
    line: int
    what: str


class Proof(NamedTuple):
    """What running the program has said of a finding."""

    verdict: str  # confirmed, dismissed within bounds, not confirmed, no driver
    reason: str
    replay: str = ""  # options of `paceline explore` that show it again

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}" + (f"\n     paceline explore {self.replay}" if self.replay else "")


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
    confidence: float = 0.8  # what the model makes of it: decides what is hidden, and the order of verdicts
    about: str = ""  # the lock or attribute: part of the fingerprint, since it stays the same when lines move
    path: str = ""
    verdict: bool | None = None  # what a comment on its line says: a bug, or none
    ordinal: int = 0  # among findings of the same rule about the same thing in one function
    signs: dict[str, float] = field(default_factory=dict)  # what the file says around it
    subject: str = ""  # what it is about, where that has one name in the whole file
    further: list[Finding] = field(default_factory=list)  # the same mistake at other places of the file
    bug: float = 0.5  # how likely it is a bug, rather than a smell or false
    proof: Proof | None = None  # with --explore

    @property
    def fingerprint(self) -> str:
        """An id that stays the same when lines above the finding are added or removed."""
        identity = "\0".join((self.path, self.rule, self.function, self.about, str(self.ordinal)))
        return hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:16]

    @property
    def rank(self) -> str:
        """How much findings of its family are worth: high, medium or low."""
        return RANKS[self.rule[:3]]

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
        """The story, the remedy, the further places and the proof as lines of text."""
        proof = str(self.proof) if self.proof is not None else ""
        return "\n  => ".join(filter(None, (self._steps(), self.elsewhere, proof)))

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
            "rank": self.rank,
            "confidence": round(self.confidence, 3),  # deprecated, as "bug" is: no probabilities on unseen programs
            "bug": round(self.bug, 3),
            "fingerprint": self.fingerprint,
            **({"explored": self.proof._asdict()} if self.proof is not None else {}),
            "also_at": [
                {name: getattr(place, name) for name in ("line", "column", "function", "message", "fingerprint")}
                for place in self.further
            ],
        }
