"""The arithmetic of all workers in one process, for the virtual engine and for replays.

    synchronous.py  methods without a server
    servers.py      methods with a server
    pipeline.py     methods whose workers hold stages
    replicas.py     replicas of several workers, with a server between them
    fused_team.py   generated code that trains a whole pass in one call

Workers that need no replica of their own share one module. The operations, their order and the layout of memory are
those of the local engine, and so are the bits.
"""
