"""A finding: a possible deadlock or race with its place, its story and its remedy."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UsageError
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


_COMMENT = re.compile(r"#\s*paceline:\s*(ignore|not a bug|bug)\b\s*(?:\[([\w\s,]*)\])?")
#: What a comment says of its findings; "ignore" takes them away.
_VERDICTS = {"bug": True, "not a bug": False}
UNUSED = "PC002"


class Comment(NamedTuple):
    """What is said about the findings of a line, by a comment at its end.

        # paceline: ignore[PC101]        it is not reported
        # paceline: not a bug [PC101]    it is not reported, and this verdict moves the confidence of others like it
        # paceline: bug [PC101]          it is reported, and this verdict moves the confidence of others like it

    Without brackets the comment is about every finding on its line. A comment that is about no finding is itself
    reported.
    """

    what: str
    codes: frozenset[str]  # none stands for all


def with_comments(findings: list[Finding], text: str) -> list[Finding]:
    """The findings with the verdicts of comments, without the ignored ones, and one for every unused comment."""
    if "paceline:" not in text:
        return findings
    visible, used = [], set()
    comments = _comments(text)
    for finding in findings:
        comment = comments.get(finding.line)
        if comment is None or (comment.codes and finding.rule not in comment.codes):
            visible.append(finding)
            continue
        used.add((finding.line, finding.rule if comment.codes else ""))
        if comment.what in _VERDICTS:
            finding.verdict = _VERDICTS[comment.what]
            visible.append(finding)
    for line, comment in comments.items():
        visible += [_unused(line, comment, code) for code in sorted(comment.codes) or [""] if (line, code) not in used]
    return visible


def _unused(line: int, comment: Comment, code: str) -> Finding:
    """The finding for a comment that is about nothing."""
    directive = f"{comment.what}[{code}]" if code and comment.what == "ignore" else f"{comment.what} [{code}]"
    return Finding(
        UNUSED,
        line,
        1,
        "<module>",
        f"`paceline: {directive if code else comment.what}` "
        f"{'suppresses nothing' if comment.what == 'ignore' else 'is about no finding'}",
        remedy="remove the comment",
        confidence=1.0,
        about=code,
    )


def _comments(text: str) -> dict[int, Comment]:
    """The comment of each line that has one."""
    comments: dict[int, Comment] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                codes = (code.strip() for code in (match[2] or "").split(","))
                comments[token.start[0]] = Comment(match[1], frozenset(code for code in codes if code))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return comments  # the tokenizer cannot read the rest of a broken file
    return comments


# A baseline: a file of known findings, so that only new ones are reported.
# Findings are known by their fingerprints, which stay the same when lines move.


def write_baseline(path: Path, findings: list[Finding]) -> None:
    """Make these findings the known ones."""
    places = [place for finding in findings for place in finding.places]
    rows = [{"fingerprint": f.fingerprint, "path": f.path, "rule": f.rule, "function": f.function} for f in places]
    path.write_text(json.dumps({"version": 1, "findings": rows}, indent=1) + "\n", encoding="utf-8")


def read_baseline(path: Path) -> set[str]:
    """The fingerprints of the known findings."""
    try:
        return {row["fingerprint"] for row in json.loads(path.read_text(encoding="utf-8"))["findings"]}
    except OSError as error:
        raise UsageError(
            f"the baseline {path} cannot be read: {error.strerror}. Write one with --write-baseline"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not a baseline file. Write one with --write-baseline") from None
