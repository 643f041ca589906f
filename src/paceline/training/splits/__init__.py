"""Models whose layers are split over workers: the model's graph as algorithms.splits sees it, and a worker's part.

describing    the operations of a traced model, as nodes of algorithms.splits
planning      the blueprint: a program for each size of chunk, rehearsed against the model
slicing       the part of the model that a worker stores
operations    how an operation is computed on parts
exchanging    movements over a link, or in one process
walk          the generator that runs a worker's program, forward and back
gradients     the gradients of a replica that is a part of the model
"""
