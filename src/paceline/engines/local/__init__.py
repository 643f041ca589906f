"""The local engine: a plan on processes of this machine that share memory.

    worker_pool.py    the parent: it starts the workers, observes them (observer.py) and ends the run
    diagnosis.py      the error that ends the run when a worker fails
    process_main.py   a worker process, from its start to its end; it gets assignment.py and sends messages.py
    worker.py         a worker with the whole model, which runs a method (methods/); pipeline.py, with stages of it
    arena.py          the memory that all of them share
    checkpointing.py  the parent's side of checkpoints; state_buffers.py and state_writer.py are the workers' side

There is no server process: the server's machines are integers in the arena, and the worker that holds the lock runs
them.

Nothing is imported here: a process that a tuner starts for a function of the user's needs none of it but `process`.
"""
