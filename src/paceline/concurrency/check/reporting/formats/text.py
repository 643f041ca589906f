"""Text for people: one line per finding in the format of ruff, alone or followed by its story and its fingerprint."""

from __future__ import annotations

import textwrap

from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.run import Report


def text(report: Report) -> str:
    """The findings, separated by blank lines."""
    blocks = []
    for finding in report.findings:
        mark = f"(rank {finding.rank}, fingerprint {finding.fingerprint})"
        blocks.append(f"{_head(finding)}\n{textwrap.indent(finding.explanation(), '  ')}\n    {mark}")
    return "\n\n".join(blocks)


def concise(report: Report) -> str:
    """One line for each finding, as editors and scripts read it."""
    return "\n".join("; ".join(filter(None, (_head(f), f.elsewhere))) for f in report.findings)


def _head(finding: Finding) -> str:
    return f"{finding.path}:{finding.line}:{finding.column}: {finding.rule} {finding.message}"
