"""Ranks of `torch.distributed` as threads of one process, over modelled collectives.

A rank runs until its next collective. So a hang is known at once, without a time-out: no rank can continue.
"""

from __future__ import annotations

from functools import cache


@cache
def install() -> None:
    """Put the modelled backend and launchers in place; this imports PyTorch."""
    from paceline.concurrency.explore.ranks import drills, launch, process_group

    for module in (process_group, launch, drills):
        module.install()
