"""The checker: finds deadlocks and races in Python programs before they run. See docs/internals/checker.md.

    text ─► syntax tree ─► module: what is declared, and which of it are locks, queues, threads
                              │
              control-flow graph of each function ─► depth-first walk with the held locks as state
                              │
              summaries, joined over the call graph ─► rules ─► findings, each with a story

Neither torch nor the code that is checked is ever imported.
"""
