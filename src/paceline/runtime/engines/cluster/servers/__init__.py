"""The processes of plans with servers: the machines of `algorithms.cluster`, with sockets, tensors and a clock.

    loop        hands a machine what arrives, and does what it asks for; machine messages as frames
    shard_state the tensors of a shard: versions are made in place, since one process holds them
    desk_process, shard_process
    client      a worker's side: the walk of `engines.workers.methods` over sockets
    server_head, collector   the head's side: progress, parameters, checkpoints and the trace of pushes

    worker                          shard server (primary)                 backup
    ------                          ----------------------                 ------
    1 gradients into one vector
    2 Push ----------------------> 3 Replicate ------------------------> 4 the same step
                                   5 the rule and the optimizer step
    7 computes with it <---------- 6 Pushed, once the backup has it <---- Replicated

The worker receives parameters straight into the memory that its module computes with.
"""
