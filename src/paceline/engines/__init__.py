"""Engines run plans: `virtual` on a clock that jumps, `local` on this machine's processes, `replay` a recorded run
again.
"""
