"""Events, conditions, semaphores and barriers that no one signals: PC2xx."""

from __future__ import annotations

from paceline.concurrency.check.rules.events import (
    barrier_parties,
    cleared_late,
    lost_wakeup,
    never_set,
    notify_one,
    notify_without_lock,
    slot_freed,
    timeout_unnoticed,
    unannounced,
    wait_outside_loop,
)
from paceline.concurrency.check.rules.rule import Rule

TITLE = "Events, conditions and barriers"
RULES: tuple[Rule, ...] = (
    wait_outside_loop.RULE,
    lost_wakeup.RULE,
    never_set.RULE,
    notify_without_lock.RULE,
    cleared_late.RULE,
    notify_one.RULE,
    unannounced.RULE,
    timeout_unnoticed.RULE,
    barrier_parties.RULE,
    slot_freed.RULE,
)
