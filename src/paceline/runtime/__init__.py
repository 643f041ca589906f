"""What runs a plan: processes, clocks and the way between them, and what a run leaves on disk.

    links    how ranks reach each other: shared memory, TCP, messages, membership
    engines  one machine, a cluster, the virtual clock, replay, MPI; the servers that all of them use
    runs     the run folder: trace, run.json, progress
    report   the page of a run, and files for other programs
    backend  the collectives as a backend of torch.distributed

Read engines/setup.py first, then engines/workers/performer.py, which answers what a method's program yields.
"""
