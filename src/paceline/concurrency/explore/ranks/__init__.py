"""Ranks of `torch.distributed` as threads of one process, over modelled collectives.

A rank runs until its next collective. So a hang is known at once, without a time-out: no rank can continue.
"""
