"""The protocol of a cluster: a machine for every process, on a network that loses, doubles, delays and cuts.

    messages    what processes send each other, and how it is packed into integers; the batches that a shard has
    outputs     what a machine asks of its engine: to send, to apply, to compute
    views       the desk's side of one shard: which servers hold it
    desk        leases batches to workers; rebuilt from the shards when it was lost
    shard       a shard server: primary, backup or spare
    worker      asks, computes, pushes to every shard
    steps       the steps of single processes, each computed once
    explore     what may happen next to a few processes, and every interleaving of it
    launchers   what a launcher says in the environment
    succession  who leads the run: terms, votes, rolls
    numbered_rows  which rows of the trace a head has

A machine is handed messages and the time, and returns outputs:

    outputs = machine.handle(now, sender, message)
    outputs = machine.tick(now)

It knows no socket, no clock and no tensor, so that the objects that train over sockets are those that the simulation
(`engines.virtual.network`) and the exploration break. The contract that they keep is docs/internals/contract.md.
"""
