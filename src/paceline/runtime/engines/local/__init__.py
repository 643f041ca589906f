"""The local engine: a plan on processes of this machine that share memory. This package is the parent's side.

worker_pool.py    starts the workers (engines/workers), observes them (engines/observer.py) and ends the run
checkpointing.py  what a checkpoint holds (engines/checkpoint_manager.py decides when, and has it written)
"""
