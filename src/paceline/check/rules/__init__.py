"""The rules: a file each, and a row here."""

from __future__ import annotations

from paceline.check.rules import (
    callback_under_lock,
    collected_under_lock,
    collective_in_thread,
    dropped_lock,
    fork_lock,
    join_before_drain,
    left_early,
    lock_leak,
    lock_order,
    lost_lock,
    lost_wakeup,
    nested_submit,
    not_waited,
    pipe_wait,
    root_mismatch,
    send_receive,
    shape_mismatch,
    signal_handler,
    some_ranks,
    taken_again,
    task_done,
    unordered_collectives,
    wait_for_the_dead,
    wait_once,
    wait_under_lock,
)
from paceline.check.rules.rule import Rule

RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in (
        lock_order.RULE,
        lock_leak.RULE,
        taken_again.RULE,
        callback_under_lock.RULE,
        wait_under_lock.RULE,
        lost_lock.RULE,
        dropped_lock.RULE,
        collected_under_lock.RULE,
        signal_handler.RULE,
        fork_lock.RULE,
        join_before_drain.RULE,
        pipe_wait.RULE,
        task_done.RULE,
        wait_once.RULE,
        lost_wakeup.RULE,
        wait_for_the_dead.RULE,
        nested_submit.RULE,
        some_ranks.RULE,
        left_early.RULE,
        unordered_collectives.RULE,
        send_receive.RULE,
        root_mismatch.RULE,
        shape_mismatch.RULE,
        collective_in_thread.RULE,
        not_waited.RULE,
    )
}
