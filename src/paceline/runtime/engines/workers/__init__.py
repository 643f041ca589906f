"""Worker processes: what they compute and exchange, on this machine or on a node of a cluster.

    process_main.py   a worker process; messages.py has what it gets, sends, and reports at its end
    worker.py         a worker with the whole model, which runs a method (methods/); pipeline.py, with stages of it
    splits.py         a worker with parts of layers; dataflow.py, with operators
    arena.py          the memory that the workers of a machine share with their parent
    state_buffers.py  what workers write for checkpoints and evaluations, which the parent reads

There is no server process on one machine: the server's machines are integers in the arena, and the worker that holds
the lock runs them.

Nothing is imported here: a process that a tuner starts for a function of the user's needs none of it but `process`.
"""
