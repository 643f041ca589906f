"""Servers: one implementation of each kind, used by every engine.

    port.py           push and pull: the transaction on a shard that every kind shares
    gradient.py       a gradient arrives; the rule and the user's optimizer work at the shard
    gathering.py      gradients are held until a round is full
    centre.py         a replica is exchanged with a centre
    pairwise.py       a replica is averaged with a neighbour's
    hogwild.py        one memory, written without locks
    shard_memory.py   what a shard is made of, shared by processes or private to one

The machines of `algorithms.server` decide (lease, apply, hold, drop); a port carries a worker's push or pull to them
and does what they answer. On one machine a port works on shared memory under the shard's lock, and there is no server
process; the virtual engine and replay use the same ports on private memory.
"""
