"""Ranks: collectives, and messages from one to another: PC5xx."""

from __future__ import annotations

from paceline.check.rules.collectives import (
    collective_in_thread,
    converged_alone,
    every_rank_writes,
    left_early,
    missing_barrier,
    not_waited,
    own_data,
    root_mismatch,
    send_receive,
    shape_mismatch,
    some_ranks,
    store_key,
    unordered_collectives,
    unused_parameter,
    without_partner,
    world_size,
)
from paceline.check.rules.rule import Rule

TITLE = "Collectives and messages"
RULES: tuple[Rule, ...] = (
    some_ranks.RULE,
    left_early.RULE,
    unordered_collectives.RULE,
    send_receive.RULE,
    root_mismatch.RULE,
    shape_mismatch.RULE,
    collective_in_thread.RULE,
    not_waited.RULE,
    missing_barrier.RULE,
    every_rank_writes.RULE,
    own_data.RULE,
    world_size.RULE,
    store_key.RULE,
    unused_parameter.RULE,
    converged_alone.RULE,
    without_partner.RULE,
)
