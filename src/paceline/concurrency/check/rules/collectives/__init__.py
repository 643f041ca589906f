"""Ranks: collectives, and messages from one to another: PC5xx."""

from __future__ import annotations

from paceline.concurrency.check.rules.collectives import (
    both_send_first,
    collective_in_thread,
    collective_on_some_ranks,
    converged_alone,
    every_rank_writes,
    gathered_if_present,
    left_before_collective,
    message_without_partner,
    missing_barrier,
    not_waited_for,
    root_mismatch,
    shape_mismatch,
    store_key_never_set,
    unordered_collectives,
    unused_on_one_rank,
    world_size_mismatch,
)
from paceline.concurrency.check.rules.rule import Rule

TITLE = "Collectives and messages"
RULES: tuple[Rule, ...] = (
    collective_on_some_ranks.RULE,
    left_before_collective.RULE,
    unordered_collectives.RULE,
    both_send_first.RULE,
    root_mismatch.RULE,
    shape_mismatch.RULE,
    collective_in_thread.RULE,
    not_waited_for.RULE,
    missing_barrier.RULE,
    every_rank_writes.RULE,
    gathered_if_present.RULE,
    world_size_mismatch.RULE,
    store_key_never_set.RULE,
    unused_on_one_rank.RULE,
    converged_alone.RULE,
    message_without_partner.RULE,
)
