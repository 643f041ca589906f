"""Engines run plans: `local` on processes of this machine, `virtual` on a simulated clock, `mpi` on ranks of MPI.

`replay` runs a recorded run again.
"""
