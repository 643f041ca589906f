"""What training is made of, in one process: no other process and no socket is known here.

    jobs         what is trained: `Job`, and the built-in ones
    preparation  from raw files to a folder of shards; shards is what such a folder holds
    data         which samples a batch holds
    gradients    how a worker computes its gradient, and what it sends of it
    parameters   how parameters and the optimizer's state are laid out and stored
    stages       how a model is cut into the stages of a pipeline
    splits       how layers are split among workers
    operators    modules as actors that send each other messages

Read jobs/job.py first, then gradients/replica.py and parameters/store.py.
"""
