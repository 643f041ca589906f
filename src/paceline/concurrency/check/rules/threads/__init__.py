"""Threads, executors and timers that do not end: PC2xx."""

from __future__ import annotations

from paceline.concurrency.check.rules.rule import Rule
from paceline.concurrency.check.rules.threads import (
    called_not_passed,
    exit_waits,
    joined_early,
    joins_itself,
    local_flag,
    nested_submit,
    rearmed,
    stop_lost,
    thread_attribute_hidden,
)

TITLE = "Threads, executors and timers"
RULES: tuple[Rule, ...] = (
    nested_submit.RULE,
    joins_itself.RULE,
    joined_early.RULE,
    thread_attribute_hidden.RULE,
    called_not_passed.RULE,
    exit_waits.RULE,
    stop_lost.RULE,
    local_flag.RULE,
    rearmed.RULE,
)
