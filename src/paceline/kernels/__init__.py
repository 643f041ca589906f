"""Small networks at the machine's limit: a small compiler from modules to C++ and CUDA C.

graph.py       what the module is: layers as data; layers/ has a file per kind: how it is seen, what it computes
ir.py          the statements of one sample; lower.py writes them, adjoint.py derives the way back
fusion.py  blocks.py  memory.py  plan.py     what is done in one go, in which registers, where it lies
printers/      C++ in lanes, of one sample, as a study published it; CUDA C; NumPy
build.py       a library from the text, cached
fused.py       `fuse`: the object that trains; replicas.py several models at once
measure/       `paceline bench kernels`
ranks.py       the ranks of an MPI program as one team; apart.py what shares no memory
cuda/          the same on a GPU
library/       single layers for use within PyTorch
"""

from paceline.kernels.apart import Apart
from paceline.kernels.build import NoCompiler
from paceline.kernels.fused import Fused, fuse
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.ranks import fuse_ranks
from paceline.kernels.replicas import ReplicaSlots, fuse_replicas

__all__ = ["Apart", "CannotFuse", "Fused", "NoCompiler", "ReplicaSlots", "fuse", "fuse_ranks", "fuse_replicas"]
