"""The documentation of the checker's rules, from the rules themselves: `paceline explain` and the site's pages."""

from __future__ import annotations

from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.rules.rule import Rule
from paceline.errors import UsageError, suggest


def section(rule: Rule) -> str:
    """One rule in Markdown, with an example that it reports and one that it does not."""
    head = f"### {rule.code} {rule.name}\n\n{rule.why.strip()}"
    return f"{head}\n\nReported:\n\n```text\n{rule.bad}```\n\nNot reported:\n\n```text\n{rule.good}```\n"


def explain_rule(code: str) -> str:
    """The section of the rule with this code or name, in any case of letters."""
    names = {rule.name.lower(): known for known, rule in RULES.items()}
    rule_code = names.get(code.strip().lower(), code.strip().upper())
    if rule_code not in RULES:
        raise UsageError(f"there is no rule {code!r}: {suggest(code.strip().upper(), RULES)}")
    return section(RULES[rule_code])
