"""Races of threads and processes: PC4xx."""

from __future__ import annotations

from paceline.concurrency.check.rules.races import (
    announced_early,
    changed_in_loop,
    check_then_act,
    checked_before_lock,
    decided_twice,
    exists_then_create,
    file_rewritten,
    flag_before_work,
    forgotten_lock,
    generator_shared,
    interleaved,
    lazy_start,
    local_set_once,
    lost_update,
    process_state,
    published_early,
    read_then_reset,
    registered_late,
    removed_first,
    thread_bound,
    unguarded_iteration,
    unlocked_call,
)
from paceline.concurrency.check.rules.rule import Rule

TITLE = "Races"
RULES: tuple[Rule, ...] = (
    check_then_act.RULE,
    lost_update.RULE,
    forgotten_lock.RULE,
    unguarded_iteration.RULE,
    lazy_start.RULE,
    exists_then_create.RULE,
    read_then_reset.RULE,
    published_early.RULE,
    registered_late.RULE,
    flag_before_work.RULE,
    checked_before_lock.RULE,
    local_set_once.RULE,
    unlocked_call.RULE,
    changed_in_loop.RULE,
    process_state.RULE,
    announced_early.RULE,
    generator_shared.RULE,
    thread_bound.RULE,
    removed_first.RULE,
    decided_twice.RULE,
    interleaved.RULE,
    file_rewritten.RULE,
)
