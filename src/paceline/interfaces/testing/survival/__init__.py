"""Real faults for real runs on a cluster, and proofs of what they did to the training.

nodes.py   starts the nodes of a run as a launcher does, but forked from a process that has PyTorch loaded
hosts.py   network namespaces for nodes, whose links can be cut, or are slow
slow_wire.py  the process that carries packets between slow hosts
faults.py  chooses a process of a run by what it does, and kills or stops it, or cuts its node off; and how long the
           fault took to be noticed and to be repaired, from the events of the run
proofs.py  each batch applied once by every shard, nothing left behind, a replay bit for bit
"""
