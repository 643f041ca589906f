"""The checker: finds deadlocks and races in Python programs before they run. See docs/checker.md.

    text ─► syntax tree ─► module: what is declared, which of it are locks, queues, threads
                              │
              graph of each function ─► walk, depth first, the held locks as state
                              │
              summaries, joined over the call graph ─► rules ─► findings with a story

No torch, and nothing of what is checked, is ever imported.
"""
