"""Suppression: `# paceline: ignore[PC101]` on the line of a finding suppresses it.

Without brackets the comment suppresses every finding on its line. A comment that suppresses nothing is itself reported.
"""

from __future__ import annotations

import io
import re
import tokenize

from paceline.check.findings import Finding

_COMMENT = re.compile(r"#\s*paceline:\s*ignore(?:\[([\w\s,]*)\])?")
UNUSED = "PC002"


def without_suppressed(findings: list[Finding], text: str) -> list[Finding]:
    """The findings that no comment suppresses, and one for every comment that suppresses nothing."""
    if "paceline: ignore" not in text:
        return findings
    kept, used = [], set()
    comments = _comments(text)
    for finding in findings:
        codes = comments.get(finding.line)
        if codes is None or (codes and finding.rule not in codes):
            kept.append(finding)
        else:
            used.add((finding.line, finding.rule if codes else ""))
    for line, codes in comments.items():
        kept += [_unused(line, code) for code in sorted(codes) or [""] if (line, code) not in used]
    return kept


def _unused(line: int, code: str) -> Finding:
    """The finding for a comment that suppresses nothing."""
    what = f"`paceline: ignore[{code}]`" if code else "`paceline: ignore`"
    return Finding(
        UNUSED,
        line,
        1,
        "<module>",
        f"{what} suppresses nothing",
        remedy="remove the comment",
        confidence=1.0,
        about=code,
    )


def _comments(text: str) -> dict[int, set[str]]:
    """Line -> the codes that are suppressed there; no code stands for all."""
    found: dict[int, set[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                found[token.start[0]] = {code.strip() for code in (match[1] or "").split(",") if code.strip()}
    except (tokenize.TokenError, SyntaxError, ValueError):
        return found  # the tokenizer cannot read the rest of a broken file
    return found
