"""Deadlocks, races and hangs of any Python program. Nothing here needs PyTorch.

    check    reads source: which locks, queues and collectives can wait for ever, which data are raced for
    watcher  reads running processes: hung or busy, and who waits for whom

Read check/engine.py and watcher/watch.py first.
"""
