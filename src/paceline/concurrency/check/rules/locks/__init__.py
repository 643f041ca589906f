"""Locks, and what a signal handler, a destructor or a fork does to them: PC1xx."""

from __future__ import annotations

from paceline.concurrency.check.rules.locks import (
    callback_under_lock,
    fork_with_threads,
    left_taken,
    lock_across_fork,
    lock_dropped_by_callee,
    lock_in_destructor,
    lock_leak,
    lock_of_its_own,
    lock_order,
    lock_taken_again,
    logs_under_lock,
    not_taken,
    released_never_taken,
    signal_handler,
    wait_under_lock,
)
from paceline.concurrency.check.rules.rule import Rule

TITLE = "Locks, re-entry and fork"
RULES: tuple[Rule, ...] = (
    lock_order.RULE,
    lock_leak.RULE,
    lock_taken_again.RULE,
    callback_under_lock.RULE,
    wait_under_lock.RULE,
    lock_of_its_own.RULE,
    lock_dropped_by_callee.RULE,
    released_never_taken.RULE,
    lock_in_destructor.RULE,
    signal_handler.RULE,
    left_taken.RULE,
    logs_under_lock.RULE,
    not_taken.RULE,
    lock_across_fork.RULE,
    fork_with_threads.RULE,
)
