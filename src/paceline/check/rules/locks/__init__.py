"""Locks, and what a signal handler, a destructor or a fork does to them: PC1xx."""

from __future__ import annotations

from paceline.check.rules.locks import (
    callback_under_lock,
    collected_under_lock,
    dropped_lock,
    fork_lock,
    fork_with_threads,
    left_taken,
    lock_leak,
    lock_order,
    logs_under_lock,
    lost_lock,
    never_taken,
    not_taken,
    signal_handler,
    taken_again,
    wait_under_lock,
)
from paceline.check.rules.rule import Rule

TITLE = "Locks, re-entry and fork"
RULES: tuple[Rule, ...] = (
    lock_order.RULE,
    lock_leak.RULE,
    taken_again.RULE,
    callback_under_lock.RULE,
    wait_under_lock.RULE,
    lost_lock.RULE,
    dropped_lock.RULE,
    never_taken.RULE,
    collected_under_lock.RULE,
    signal_handler.RULE,
    left_taken.RULE,
    logs_under_lock.RULE,
    not_taken.RULE,
    fork_lock.RULE,
    fork_with_threads.RULE,
)
