"""A script for `--ranks 3` that checks what the modelled mpi4py computes."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.Get_size()
following, before = (rank + 1) % size, (rank - 1) % size
assert size == 3
assert comm.bcast({"a": 1} if rank == 0 else None, root=0) == {"a": 1}
assert comm.scatter([[each] for each in range(size)] if rank == 1 else None, root=1) == [rank]
assert comm.gather(rank, root=2) == ([0, 1, 2] if rank == 2 else None)
assert comm.allgather(rank) == [0, 1, 2]
assert comm.alltoall([10 * rank + each for each in range(size)]) == [rank, 10 + rank, 20 + rank]
assert comm.reduce(rank, op=MPI.MAX, root=1) == (2 if rank == 1 else None)
assert comm.allreduce(rank) == 3
assert comm.scan(rank + 1) == [1, 3, 6][rank]
comm.barrier()
comm.Barrier()

own, total = np.full(2, float(rank)), np.empty(2)
comm.Allreduce(own, total, op=MPI.SUM)
assert total.tolist() == [3, 3]
largest = own.copy()
comm.Allreduce(MPI.IN_PLACE, largest, MPI.MAX)
assert largest.tolist() == [2, 2]
comm.Bcast([total, MPI.DOUBLE], root=1)
rows = np.empty((size, 2))
comm.Allgather(own, rows)
assert rows[:, 0].tolist() == [0, 1, 2]
row = np.empty(2)
comm.Scatter(rows if rank == 0 else None, row, root=0)
assert row.tolist() == [rank, rank]
table = np.empty((size, 2)) if rank == 0 else None
comm.Gather(row, table, root=0)
assert rank or table[:, 1].tolist() == [0, 1, 2]
result = np.zeros(2)
comm.Reduce(row, result, op=MPI.MAX, root=1)
assert result.tolist() == ([2, 2] if rank == 1 else [0, 0])

status = MPI.Status()
item = comm.sendrecv(rank, dest=following, source=MPI.ANY_SOURCE, status=status)
assert item == before == status.source
request = comm.isend("hello", dest=following, tag=7)
assert comm.recv(source=before, tag=7) == "hello"
request.wait()
if rank == 0:
    comm.Send(total, dest=1)
elif rank == 1:
    comm.Recv(result, source=0)
    assert result.tolist() == [3, 3]
half = comm.Split(rank % 2, rank)
assert half.size == (1 if rank == 1 else 2)
assert half.allreduce(rank) == (1 if rank == 1 else 2)
