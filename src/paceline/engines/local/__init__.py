"""The local engine: a plan on processes of this machine that share memory. This package is the parent's side.

worker_pool.py    starts the workers (engines/workers), observes them (observer.py) and ends the run
diagnosis.py      the error that ends the run when a worker fails
checkpointing.py  when a checkpoint is due, what it holds, and the thread that writes it
"""
