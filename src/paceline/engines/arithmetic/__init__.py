"""Everybody's arithmetic in one process: what the virtual engine computes and what a replay computes again.

    in_step.py    plans whose workers keep step
    servers.py    plans with a server

One module serves all workers in turn, where they need no replica of their own. The operations, their order and the
layout of memory are those of the local engine, so the bits are too.
"""
