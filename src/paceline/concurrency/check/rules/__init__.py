"""The rules: each is a file in the folder of its family, named as its reports name it, and a row there."""

from __future__ import annotations

from paceline.concurrency.check.rules import collectives, coroutines, events, locks, processes, queues, races, threads
from paceline.concurrency.check.rules.rule import Rule

FAMILIES = (locks, queues, events, processes, threads, coroutines, races, collectives)
RULES: dict[str, Rule] = dict(sorted((rule.code, rule) for family in FAMILIES for rule in family.RULES))
