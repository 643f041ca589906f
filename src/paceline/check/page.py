"""The page of rules, made from the rules themselves:

python -m paceline.check.page > docs/checker-rules.md
"""

from __future__ import annotations

import sys
import textwrap

from paceline.check.rules import RULES
from paceline.check.rules.rule import Rule
from paceline.errors import UsageError, suggest

FAMILIES = {
    "PC1": "Locks, re-entry and fork",
    "PC2": "Queues, pipes, conditions and pools",
    "PC3": "Asyncio with threads",
    "PC4": "Races",
    "PC5": "Collectives and messages",
}
HEAD = """# The checker's rules

This page is made from the rules (`python -m paceline.check.page`); [what the checker is](checker.md) stands elsewhere.
`paceline check --explain PC101` says the same of one rule.
"""


def documentation(rule: Rule) -> str:
    """What a rule's own file says about it."""
    return (sys.modules[rule.find.__module__].__doc__ or "").strip()


def section(rule: Rule) -> str:
    said = documentation(rule)
    bad, good = (textwrap.dedent(code).strip() for code in (rule.bad, rule.good))
    head = f"### {rule.code} {rule.name}\n\n{said}"
    return f"{head}\n\nFound:\n\n```text\n{bad}\n```\n\nNot found:\n\n```text\n{good}\n```\n"


def explained(code: str) -> str:
    if code not in RULES:
        raise UsageError(f"there is no rule {code!r}: {suggest(code, RULES)}")
    return section(RULES[code])


def page() -> str:
    blocks = [HEAD]
    table = [f"| [{r.code}](#{r.code.lower()}-{r.name}) | {r.name} | {r.summary} |" for r in RULES.values()]
    blocks.append("\n".join(["| rule | name | finds |", "|---|---|---|", *table]) + "\n")
    for prefix, title in FAMILIES.items():
        blocks.append(f"## {title}\n")
        blocks += [section(rule) for code, rule in RULES.items() if code.startswith(prefix)]
    return "\n".join(blocks)


if __name__ == "__main__":
    sys.stdout.write(page())
