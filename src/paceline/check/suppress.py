"""`# paceline: ignore[PC101]` on a finding's line leaves it out; one that leaves nothing out is a finding itself.

Without brackets it leaves out whatever is found on the line.
"""

from __future__ import annotations

import io
import re
import tokenize

from paceline.check.findings import Finding

_COMMENT = re.compile(r"#\s*paceline:\s*ignore(?:\[([\w\s,]*)\])?")
UNUSED = "PC002"


def suppressed(findings: list[Finding], text: str) -> list[Finding]:
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
    what = f"`paceline: ignore[{code}]`" if code else "`paceline: ignore`"
    return Finding(
        UNUSED, line, 1, "<module>", f"{what} leaves nothing out", remedy="remove it", confidence=1.0, about=code
    )


def _comments(text: str) -> dict[int, set[str]]:
    """Line -> the codes to leave out there; none for all."""
    found: dict[int, set[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                found[token.start[0]] = {code.strip() for code in (match[1] or "").split(",") if code.strip()}
    except (tokenize.TokenError, SyntaxError, ValueError):
        return found  # the rest of a broken file has no comments that count
    return found
