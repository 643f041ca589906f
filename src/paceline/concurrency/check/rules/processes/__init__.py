"""Child processes, their pipes and pools: PC2xx."""

from __future__ import annotations

from paceline.concurrency.check.rules.processes import (
    copied_to_child,
    end_of_stream,
    input_open,
    join_before_drain,
    left_behind,
    own_end,
    pipe_not_read,
    pool_gone,
    wait_for_the_dead,
)
from paceline.concurrency.check.rules.rule import Rule

TITLE = "Child processes and pipes"
RULES: tuple[Rule, ...] = (
    join_before_drain.RULE,
    pipe_not_read.RULE,
    wait_for_the_dead.RULE,
    copied_to_child.RULE,
    end_of_stream.RULE,
    own_end.RULE,
    pool_gone.RULE,
    input_open.RULE,
    left_behind.RULE,
)
