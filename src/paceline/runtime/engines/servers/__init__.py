"""Servers: one implementation of each kind, used by every engine.

    shard_memory.py   what a shard is made of, shared by processes or private to one; push and pull: the transaction on
                      it that every kind shares
    gradient.py       a gradient arrives; the rule and the user's optimizer work at the shard, at once or for a round
    ports.py          a replica is exchanged with a centre or a neighbour, or one memory is written without locks
    stage_shards.py   the shards between replicas that are pipelines

The machines of `algorithms.server` decide (lease, apply, hold, drop); a port carries a worker's push or pull to them
and does what they answer. On one machine a port works on shared memory under the shard's lock, and there is no server
process; the virtual engine and replay use the same ports on private memory.
"""
