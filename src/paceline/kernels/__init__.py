"""Small networks at the machine's limit: a small compiler from modules to C++.

graph.py       what the module is: layers as data
lower.py       what each layer computes, as statements of one sample (ir.py)
adjoint.py     the way back, derived
fusion.py  blocks.py  plan.py     what is done in one go, in which registers, where it lies
printers/      text
build.py       a library from it, cached
fused.py       `fuse`: the object that trains
replicas.py    several models, a lane each
ranks.py       the ranks of an MPI program as one team
"""

from paceline.kernels.build import NoCompiler
from paceline.kernels.fused import Fused, fuse
from paceline.kernels.graph import CannotFuse
from paceline.kernels.ranks import Ranks, fuse_ranks
from paceline.kernels.replicas import Replicas, fuse_replicas

__all__ = ["CannotFuse", "Fused", "NoCompiler", "Ranks", "Replicas", "fuse", "fuse_ranks", "fuse_replicas"]
