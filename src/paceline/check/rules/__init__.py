"""The rules: each has a file in the folder of its family, and a row there."""

from __future__ import annotations

from paceline.check.rules import collectives, coroutines, locks, races, waits
from paceline.check.rules.rule import Rule

FAMILIES = (locks, waits, coroutines, races, collectives)
RULES: dict[str, Rule] = {rule.code: rule for family in FAMILIES for rule in family.RULES}
