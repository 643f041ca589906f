"""The local engine: a plan on processes of this machine that share memory. This package is the parent's side.

worker_pool.py    starts the workers (engines/workers), observes them (engines/observer.py) and ends the run
checkpointing.py  when a checkpoint is due, what it holds, and the thread that writes it
"""
