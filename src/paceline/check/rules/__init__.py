"""The rules: a file each, and a row here."""

from __future__ import annotations

from paceline.check.rules import lock_order
from paceline.check.rules.rule import Rule

RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in (
        lock_order.RULE,
    )
}
