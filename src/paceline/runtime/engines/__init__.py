"""Engines run plans: `local` on processes of this machine, `cluster` on several machines (also as engine `ray`),
`virtual` on a simulated clock, `mpi` on the ranks that mpiexec started. `replay` repeats a recorded run.
"""
