"""The arithmetic of all workers in one process, for the virtual engine and for replays.

    synchronous.py  methods without a server; generated code that trains a whole pass in one call
    servers.py      methods with a server
    pipeline.py     methods whose workers hold stages, and such replicas with a server between them
    splits.py       methods whose workers hold parts of layers; dataflow.py, operators

Workers that need no replica of their own share one module. The operations, their order and the layout of memory are
those of the local engine, and so are the bits.
"""
