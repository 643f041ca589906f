"""Queues whose readers or writers wait for ever: PC2xx."""

from __future__ import annotations

from paceline.concurrency.check.rules.queues import (
    empty_then_get,
    ended_then_empty,
    filled_before_started,
    left_early,
    not_returned,
    queues_in_a_circle,
    result_lost,
    seconds_as_flag,
    task_not_done,
    too_few_end_marks,
    unanswered,
)
from paceline.concurrency.check.rules.rule import Rule

TITLE = "Queues"
RULES: tuple[Rule, ...] = (
    task_not_done.RULE,
    empty_then_get.RULE,
    queues_in_a_circle.RULE,
    too_few_end_marks.RULE,
    filled_before_started.RULE,
    unanswered.RULE,
    seconds_as_flag.RULE,
    ended_then_empty.RULE,
    not_returned.RULE,
    left_early.RULE,
    result_lost.RULE,
)
