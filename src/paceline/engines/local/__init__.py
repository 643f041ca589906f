"""The local engine: a plan on processes of this machine that share memory.

    engine.py   the parent: starts workers, watches them, drains their traces, decides what a death means
    main.py     a worker process, from its start to its end; assignment.py, what it is told and what it tells
    worker.py   what computes there with the whole model, by a station's algorithm; pipeline.py, with stages of it
    arena.py    the shared memory both look at
    keeping.py  the parent's side of checkpoints; lockers.py, the workers' side

There is no server process: the server's machines are integers in the arena, run by whoever holds the lock.
"""

from paceline.engines.local.worker_pool import train

__all__ = ["train"]
