"""Comments about findings, at the end of the line of the finding.

    # paceline: ignore[PC101]        it is not reported
    # paceline: not a bug [PC101]    it is not reported, and this verdict moves the confidence of others like it
    # paceline: bug [PC101]          it is reported, and this verdict moves the confidence of others like it

Without brackets the comment is about every finding on its line. A comment that is about no finding is itself reported.
"""

from __future__ import annotations

import io
import re
import tokenize
from typing import NamedTuple

from paceline.concurrency.check.reporting.findings import Finding

_COMMENT = re.compile(r"#\s*paceline:\s*(ignore|not a bug|bug)\b\s*(?:\[([\w\s,]*)\])?")
#: What a comment says of its findings; "ignore" takes them away.
_VERDICTS = {"bug": True, "not a bug": False}
UNUSED = "PC002"


class Comment(NamedTuple):
    """What is said about the findings of a line."""

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
