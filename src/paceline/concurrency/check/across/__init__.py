"""Findings across files: what one file says to the others, how their functions are linked, and the rules on it.

    file ─► interface: what its functions take, wait for and call ─┐
    file ─► interface ─────────────────────────────────────────────┼─► linked functions, summaries to a fixed point
    file ─► interface ─────────────────────────────────────────────┘                 │
                                                       lock order, blocking calls ─► findings across files

An interface is small and belongs to the content of its file, so that it is kept in the cache beside the findings; no
syntax tree outlives its file.
"""
