"""The documentation of the checker's rules, from the rules themselves: `paceline explain` and the site's pages."""

from __future__ import annotations

import sys
import textwrap

from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.rules.rule import Rule
from paceline.errors import UsageError, suggest


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
    rule_code = names.get(code.strip().lower(), code.strip().upper())
    if rule_code not in RULES:
        raise UsageError(f"there is no rule {code!r}: {suggest(code.strip().upper(), RULES)}")
    return section(RULES[rule_code])
