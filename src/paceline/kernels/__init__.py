"""Small networks at the machine's limit: a small compiler from modules to C++ and CUDA C.

graph.py       what the module is: layers as data; layers/ has a file per kind: how it is seen, what it computes
ir.py          the statements of one sample; compiled.py writes them, adjoint.py derives the way back
functions.py   functions of one number, and activations that are formulas of them
blocks.py  memory.py  plan.py     what is done in one go, in which registers, where it lies
printers/      C++ in lanes, of one sample, as a study published it; CUDA C; NumPy
build.py       a library from the text, cached
fused.py       `fuse`: the object that trains; resident.py lets module and optimizer lie in its memory
serve.py       the updates of a worker at a server; one_pass.py has the optimizers' steps there
exchange.py    how workers exchange gradients within a call, by memory that other processes read
weights.py     whose parameters it trains; replicas.py has several models at once
processors.py  cuda/   what it trains on, and the processes that train together; ranks.py has those of MPI
measure/       `paceline bench kernels`
library/       single layers for use within PyTorch
"""

from paceline.kernels.build import NoCompiler
from paceline.kernels.fused import Fused, fuse
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.ranks import fuse_ranks
from paceline.kernels.replicas import Replicas, fuse_replicas

__all__ = ["CannotFuse", "Fused", "NoCompiler", "Replicas", "fuse", "fuse_ranks", "fuse_replicas"]
