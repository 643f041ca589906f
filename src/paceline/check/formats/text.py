"""Text for people: one line per finding in the format of ruff, followed by its story and its fingerprint."""

from __future__ import annotations

import textwrap

from paceline.check.run import Report


def text(report: Report) -> str:
    """The findings, separated by blank lines."""
    blocks = []
    for finding in report.findings:
        head = f"{finding.path}:{finding.line}:{finding.column}: {finding.rule} {finding.message}"
        mark = f"(confidence {finding.confidence:.2f}, fingerprint {finding.fingerprint})"
        blocks.append(f"{head}\n{textwrap.indent(finding.explanation(), '  ')}\n    {mark}")
    return "\n\n".join(blocks)
