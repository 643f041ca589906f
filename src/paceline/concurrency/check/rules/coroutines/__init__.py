"""Asyncio, and its bridges to threads: PC3xx."""

from __future__ import annotations

from paceline.concurrency.check.rules.coroutines import (
    await_under_lock,
    blocking_in_async,
    bridge_on_its_loop,
    cancel_swallowed,
    filled_across_await,
    future_set_twice,
    group_never_ends,
    lazy_across_await,
    left_open,
    left_waiting,
    lock_not_awaited,
    loop_from_thread,
    main_thread_only,
    mark_missing,
    own_answer,
    spins,
    stale_after_await,
    task_not_kept,
    written_back,
)
from paceline.concurrency.check.rules.rule import Rule

TITLE = "Asyncio with threads"
RULES: tuple[Rule, ...] = (
    blocking_in_async.RULE,
    await_under_lock.RULE,
    bridge_on_its_loop.RULE,
    loop_from_thread.RULE,
    lock_not_awaited.RULE,
    lazy_across_await.RULE,
    stale_after_await.RULE,
    task_not_kept.RULE,
    future_set_twice.RULE,
    filled_across_await.RULE,
    cancel_swallowed.RULE,
    main_thread_only.RULE,
    written_back.RULE,
    left_waiting.RULE,
    group_never_ends.RULE,
    spins.RULE,
    left_open.RULE,
    mark_missing.RULE,
    own_answer.RULE,
)
