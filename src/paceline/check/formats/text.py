"""A line per finding, as ruff writes it, with its story under it."""

from __future__ import annotations

import textwrap

from paceline.check.run import Report


def text(report: Report) -> str:
    blocks = []
    for finding in report.findings:
        head = f"{finding.path}:{finding.line}:{finding.column}: {finding.rule} {finding.message}"
        blocks.append(head + "\n" + textwrap.indent(finding.told(), "  "))
    return "\n\n".join(blocks)
