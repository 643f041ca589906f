"""Generates the documentation of the rules from the rules themselves:

python -m paceline.check.reporting.page > docs/reference/errors.md
"""

from __future__ import annotations

import sys
import textwrap

from paceline.check.rules import FAMILIES, RULES
from paceline.check.rules.rule import Rule
from paceline.errors import UsageError, suggest

HEAD = """# The checker's rules

This page is generated from the rules (`python -m paceline.check.reporting.page`). The checker itself is described in
[The checker](checker.md). `paceline check --explain PC101` prints the section of one rule.
"""


def documentation(rule: Rule) -> str:
    """The docstring of the rule's own file."""
    return (sys.modules[rule.find.__module__].__doc__ or "").strip()


def section(rule: Rule) -> str:
    """One rule in Markdown, with an example that it reports and one that it does not."""
    text = documentation(rule)
    bad, good = (textwrap.dedent(code).strip() for code in (rule.bad, rule.good))
    head = f"### {rule.code} {rule.name}\n\n{text}"
    return f"{head}\n\nReported:\n\n```text\n{bad}\n```\n\nNot reported:\n\n```text\n{good}\n```\n"


def explain_rule(code: str) -> str:
    """The section of the rule with this code or name, in any case of letters."""
    names = {rule.name.lower(): known for known, rule in RULES.items()}
    known = names.get(code.strip().lower(), code.strip().upper())
    if known not in RULES:
        raise UsageError(f"there is no rule {code!r}: {suggest(code.strip().upper(), RULES)}")
    return section(RULES[known])


def page() -> str:
    """The whole page in Markdown."""
    blocks = [HEAD]
    table = [f"| [{r.code}](#{r.code.lower()}-{r.name}) | {r.name} | {r.summary} |" for r in RULES.values()]
    blocks.append("\n".join(["| rule | name | finds |", "|---|---|---|", *table]) + "\n")
    for family in FAMILIES:
        blocks.append(f"## {family.TITLE}\n")
        blocks += [section(rule) for rule in family.RULES]
    return "\n".join(blocks)


if __name__ == "__main__":
    sys.stdout.write(page())
